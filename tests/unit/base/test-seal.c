// SPDX-License-Identifier: MIT
/*
 * Boxes: answers that are known from elsewhere (test case 14 of the GCM specification by McGrew and Viega;
 * Python's hmac and cryptography modules for the others), and every way of meddling with one.
 */
#include "check.h"

#include "base/seal.h"

#include <errno.h>
#include <string.h>

enum { LEN = 1000 };

static struct seal_key key;

static size_t from_hex(uint8_t *ret, const char *hex)
{
	size_t n = strlen(hex) / 2;

	for (size_t i = 0; i < n; i++) {
		unsigned byte;

		CHECK(sscanf(hex + 2 * i, "%2x", &byte) == 1);
		ret[i] = (uint8_t)byte;
	}
	return n;
}

static void test_known(void)
{
	/* Key and nonce of zeros, 16 bytes of zeros, nothing with it. */
	static const char zeros[] = "000000000000000000000000cea7403d4d606b6e074ec5d3baf39d18"
				    "d0d1c8a799996bf0265b98b5d48ab919";
	/* Key 00 01 … 1f, nonce 64 65 … 6f, with "file 1". */
	static const char dawn[] = "6465666768696a6b6c6d6e6f296faa071a8276ff4a423b89ad0bb592"
				   "83bfbb4862276abcd83be45ba7ae";
	const struct seal_key zero_key = { { 0 } };
	uint8_t box[64], out[64];
	size_t n = from_hex(box, zeros);

	memset(out, 1, sizeof(out));
	CHECK(seal_open(out, &zero_key, SEAL_WITH_NOTHING, box, n) == 0);
	for (int i = 0; i < 16; i++)
		CHECK(out[i] == 0);
	n = from_hex(box, dawn);
	CHECK(seal_open(out, &key, (struct seal_with){ "file 1", 6 }, box, n) == 0);
	CHECK(!memcmp(out, "attack at dawn", 14));
}

static void test_derived(void)
{
	struct seal_key k;
	uint8_t want[SEAL_KEY_BYTES];

	CHECK(seal_derive(&k, &key, "chunk", "context", 7) == 0);
	from_hex(want, "a09caa742c0adbf9bc8e1861bc1c5f0098b54a2074a3d3d57c9be0f0dd76ed10");
	CHECK(!memcmp(k.bytes, want, sizeof(want)));
	CHECK(seal_derive(&k, &key, "chunk", NULL, 0) == 0);
	from_hex(want, "266d355abbf12bba65f963db5809df18dd420287c0659539ef5064917b8a1fe3");
	CHECK(!memcmp(k.bytes, want, sizeof(want)));
	seal_key_fini(&k);
	for (int i = 0; i < SEAL_KEY_BYTES; i++)
		CHECK(k.bytes[i] == 0);
}

static void test_lengths(void)
{
	static uint8_t in[LEN], out[LEN], box[LEN + SEAL_EXTRA_BYTES];
	const struct seal_with with = { "name", 4 };

	for (size_t i = 0; i < LEN; i++)
		in[i] = (uint8_t)(i * 7);
	for (size_t len = 0; len <= LEN; len = len * 2 + 1) {
		memset(out, 0xee, sizeof(out));
		CHECK(seal_close(box, &key, with, in, len) == 0);
		CHECK(seal_open(out, &key, with, box, len + SEAL_EXTRA_BYTES) == 0);
		CHECK(!memcmp(in, out, len) && (len == LEN || out[len] == 0xee));
	}
}

/* Any bit of it, any length, other keys and other data. */
static void test_tampered(void)
{
	enum { N = 40, BOX = N + SEAL_EXTRA_BYTES };
	const struct seal_with with = { "name", 4 };
	uint8_t in[N], out[BOX], box[BOX + 1] = { 0 };
	struct seal_key other = key;

	memset(in, 5, sizeof(in));
	CHECK(seal_close(box, &key, with, in, N) == 0);
	for (size_t bit = 0; bit < 8 * BOX; bit++) {
		box[bit / 8] ^= (uint8_t)(1u << bit % 8);
		CHECK(seal_open(out, &key, with, box, BOX) == -EBADMSG);
		CHECK(out[0] == 0); /* nothing of it is handed out */
		box[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	for (size_t len = 0; len < BOX; len++)
		CHECK(seal_open(out, &key, with, box, len) == -EBADMSG);
	CHECK(seal_open(out, &key, with, box, BOX + 1) == -EBADMSG);
	other.bytes[31] ^= 1;
	CHECK(seal_open(out, &other, with, box, BOX) == -EBADMSG);
	CHECK(seal_open(out, &key, SEAL_WITH_NOTHING, box, BOX) == -EBADMSG);
	CHECK(seal_open(out, &key, (struct seal_with){ "nama", 4 }, box, BOX) == -EBADMSG);
	CHECK(seal_open(out, &key, with, box, BOX) == 0 && !memcmp(in, out, N));
}

/* The same bytes never make the same box. */
static void test_fresh(void)
{
	enum { BOXES = 64 };
	uint8_t boxes[BOXES][SEAL_EXTRA_BYTES + 8];

	for (int i = 0; i < BOXES; i++) {
		CHECK(seal_close(boxes[i], &key, SEAL_WITH_NOTHING, "the same", 8) == 0);
		for (int k = 0; k < i; k++)
			CHECK(memcmp(boxes[i], boxes[k], SEAL_NONCE_BYTES));
	}
	CHECK(seal_close(NULL, &key, SEAL_WITH_NOTHING, NULL, (size_t)SEAL_BYTES_MAX + 1) ==
	      -EFBIG);
}

static void test_parse(void)
{
	static const char hex[] =
		"000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F\n";
	struct seal_key k = { { 77 } };

	CHECK(seal_key_parse(&k, "", 0) == -EINVAL && seal_key_parse(&k, hex, 63) == -EINVAL);
	CHECK(seal_key_parse(&k, hex + 1, 64) == -EINVAL);
	CHECK(seal_key_parse(&k, "0g", 2) == -EINVAL && k.bytes[0] == 77);
	CHECK(seal_key_parse(&k, hex, 65) == 0 && !memcmp(&k, &key, sizeof(k)));
	CHECK(seal_key_parse(&k, hex, 64) == 0 && !memcmp(&k, &key, sizeof(k)));
	CHECK(seal_key_parse(&k, hex, 32) == 0 && !memcmp(&k, hex, 32));
}

/* NIST SP 800-38A has no vector that begins at zero: this is AES-256-ECB of 0, 1, 2 (Python). */
static void test_stream(void)
{
	static const char want_hex[] =
		"f29000b62a499fd0a9f39a6add2e7780f05d76ae4ab99fe5a6f69b3148c2"
		"363d0ebcb5deb52c83bd";
	uint8_t buf[40] = { 0 }, want[40];

	CHECK(from_hex(want, want_hex) == sizeof(want));
	CHECK(seal_stream(buf, &key, buf, sizeof(buf)) == 0);
	CHECK(!memcmp(buf, want, sizeof(buf)));
	CHECK(seal_stream(buf, &key, buf, sizeof(buf)) == 0);
	for (size_t i = 0; i < sizeof(buf); i++)
		CHECK(buf[i] == 0);
	CHECK(seal_stream(buf, &key, buf, 0) == 0);
	CHECK(seal_stream(buf, &key, buf, (size_t)SEAL_BYTES_MAX + 1) == -EFBIG);
}

/* Zeros in unit 0x123456789a under key 00 01 … 3f. */
static void test_disk(void)
{
	static const char head[] = "a127e1a220fe4b9006c2265a281f8e69";
	static const char tail[] = "982f51dc8f71fe7e6f312b2f30b6f3bf";
	static uint8_t plain[3 * SEAL_DISK_UNIT_BYTES], sealed[3 * SEAL_DISK_UNIT_BYTES];
	const uint64_t at = 0x123456789aull * SEAL_DISK_UNIT_BYTES;
	const size_t unit = SEAL_DISK_UNIT_BYTES;
	struct seal_disk_key k, other;
	uint8_t want[16];

	for (uint8_t i = 0; i < sizeof(k.bytes); i++)
		k.bytes[i] = i;
	CHECK(seal_disk(sealed, &k, SEAL_DISK_CLOSE, at, plain, sizeof(plain)) == 0);
	from_hex(want, head);
	CHECK(memcmp(sealed, want, sizeof(want)) == 0);
	from_hex(want, tail);
	CHECK(memcmp(sealed + unit - sizeof(want), want, sizeof(want)) == 0);
	CHECK(memcmp(sealed, sealed + unit, unit) != 0); /* the same bytes elsewhere look otherwise */

	/* A part alone, in place. */
	CHECK(seal_disk(sealed + unit, &k, SEAL_DISK_OPEN, at + unit, sealed + unit, unit) == 0);
	CHECK(memcmp(sealed + unit, plain, unit) == 0);
	other = k;
	other.bytes[40] ^= 1;
	CHECK(seal_disk(sealed, &other, SEAL_DISK_OPEN, at, sealed, unit) == 0);
	CHECK(memcmp(sealed, plain, unit) != 0);
	CHECK(seal_disk(sealed, &k, SEAL_DISK_OPEN, at + 1, sealed, unit) == -EINVAL);
	CHECK(seal_disk(sealed, &k, SEAL_DISK_OPEN, at, sealed, unit - 1) == -EINVAL);
}

int main(void)
{
	for (uint8_t i = 0; i < SEAL_KEY_BYTES; i++)
		key.bytes[i] = i;
	test_known();
	test_derived();
	test_lengths();
	test_tampered();
	test_fresh();
	test_parse();
	test_stream();
	test_disk();
	return 0;
}
