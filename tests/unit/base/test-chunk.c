// SPDX-License-Identifier: MIT
/*
 * Chunk digests: fixed answers, which this computes without brumate:
 *
 *	def data(n): return bytes((i * i + i // 256 * 7 + 3) & 255 for i in range(n))
 *	def root(b):
 *		leaves = [hashlib.sha256(b[i:i+4096]).digest() for i in range(0, len(b), 4096)]
 *		return b"brumate-chunk-1\0" + len(b).to_bytes(8, "little") + b"".join(leaves)
 *	hashlib.sha256(root(data(n))), hmac.new(bytes(range(32)), root(data(n)), "sha256")
 */
#include "check.h"

#include "base/chunk.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static uint8_t data[CHUNK_BYTES_MAX + 1], zeros[CHUNK_BYTES_MAX];

static const struct known {
	size_t len;
	const char *plain, *keyed;
} known[] = {
	{ 0, "5c8941bc79767ea39d5f89b846ec5ace8a6e48e2c71d8db041a5070d7cc8c8e1",
	  "0f4ac21b002a9c1f4304d851157767f11fe312ef5640cd1eb281f7cee07f2b65" },
	{ 1, "34205b3c9cb3ef54d2333c3bce7b21bd6f7136d5455492c3789f8169616c8e39",
	  "7129cf2f0a1bd74e44699088e9a946dbb79f192f7c9dd9b11c5deb051710d308" },
	{ 4095, "90deab9e7e7bc19fe8f77281828b29073af2fb364fc45e390160f27c81b83aa0",
	  "770d043b6d4543de137b0bed7379933758b513fe728b25929001815aaff0d5ed" },
	{ 4096, "251789839ce996e707eaf2490b18a072b6ce934a00591f7c4fddc6d8d5a9d6d6",
	  "bd9d8dcc1c9040367ad48a6abe7e1bf8841144e7b5b631f223f4708a50ae6ac7" },
	{ 4097, "0807f7c3ec004b78077ab383ff262ba941df16a403a721e73cdc447dfbc0b9e6",
	  "395688e229d7be22f2e7c1f4d4d8d9b12efc32eced8640ccb03d9cdb72c85aef" },
	{ 8192, "3d4d5a9a456b2f5231928ec1d6d4f296e8bf236e4c73abb7b33e06e1d066790e",
	  "043f33e27ac18a3a6796ff3c6565d50c7af889f0ad8db8a244acca9585902138" },
	{ 65541, "faeb63bb4f53ab0e2df7073ff01fdb842dc3deb5cc74b568f215ca058bbd6ad6",
	  "9bfaaae21c26e3a3d48e8d14f5005d33241ff482c3a483dd7662b4cb03b2bbcd" },
	{ 2097152, "39b20aeb3c116c7211adc5c802d707bb725ef98c020182b849ffdaf6ced18802",
	  "3316a6618a4a704f1eaa9d32779ca93e747214591fae003288a075384444098e" },
};
enum { N_KNOWN = sizeof(known) / sizeof(known[0]), THREADS = 4 };
static const char zero_chunk[] = "cb78aabac43b2f84009944f27c2668c56ed875ebbcfd87c19f156a58806085c0";

static struct chunk_key key;

static void check_digest(const struct digest *d, const char *want)
{
	char hex[DIGEST_TEXT_BYTES];

	digest_format(hex, d);
	CHECK_STR(hex, want);
}

static void check_known(const struct known *k)
{
	struct digest d;

	CHECK(chunk_digest(&d, data, k->len) == 0);
	check_digest(&d, k->plain);
	CHECK(chunk_digest_keyed(&d, &key, data, k->len) == 0);
	check_digest(&d, k->keyed);
}

static void *check_all(void *arg)
{
	for (size_t i = 0; i < N_KNOWN; i++)
		check_known(&known[i]);
	return arg;
}

static void test_known(void)
{
	pthread_t threads[THREADS];
	struct digest d;

	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, check_all, NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(chunk_digest(&d, zeros, sizeof(zeros)) == 0);
	check_digest(&d, zero_chunk);
	CHECK(chunk_digest_zeros(&d) == 0);
	check_digest(&d, zero_chunk);
}

/* No byte is left out, wherever it is, and no length. */
static void test_every_leaf(void)
{
	enum { LEN = 9 * CHUNK_LEAF_BYTES + 77 };
	struct digest was, d;

	CHECK(chunk_digest(&was, data, LEN) == 0);
	for (size_t i = 0; i < LEN; i += 1021) {
		data[i] ^= 0x10;
		CHECK(chunk_digest(&d, data, LEN) == 0 && memcmp(&d, &was, sizeof(d)));
		data[i] ^= 0x10;
	}
	/* Zeros at the end count, though the leaf's other bytes are the same. */
	CHECK(chunk_digest(&was, zeros, 5000) == 0);
	CHECK(chunk_digest(&d, zeros, 5001) == 0 && memcmp(&d, &was, sizeof(d)));
}

static void test_refused(void)
{
	struct digest d = { { 9 } };

	CHECK(chunk_digest(&d, data, CHUNK_BYTES_MAX + 1) == -EINVAL);
	CHECK(chunk_digest_keyed(&d, &key, data, CHUNK_BYTES_MAX + 1) == -EINVAL);
	CHECK(d.bytes[0] == 9);
}

static void test_zero(void)
{
	static const size_t lens[] = { 1, 7, 8, 511, 512, 513, 4096, 4099, CHUNK_BYTES_MAX - 1 };

	CHECK(chunk_is_zero(zeros, 0) && chunk_is_zero(zeros, sizeof(zeros)));
	for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		size_t n = lens[i], at[] = { 0, n / 2, n - 1 };

		/* Unaligned, with something else right before and behind. */
		zeros[0] = zeros[n + 1 < sizeof(zeros) ? n + 1 : 0] = 1;
		CHECK(chunk_is_zero(zeros + 1, n));
		zeros[0] = zeros[n + 1 < sizeof(zeros) ? n + 1 : 0] = 0;
		for (int k = 0; k < 3; k++) {
			zeros[at[k]] = 0x80;
			CHECK(!chunk_is_zero(zeros, n));
			zeros[at[k]] = 0;
		}
	}
}

int main(void)
{
	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * i + i / 256 * 7 + 3);
	for (uint8_t i = 0; i < CHUNK_KEY_BYTES; i++)
		key.bytes[i] = i;
	test_known();
	test_every_leaf();
	test_refused();
	test_zero();
	return 0;
}
