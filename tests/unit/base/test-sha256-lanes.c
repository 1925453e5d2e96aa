// SPDX-License-Identifier: MIT
/* Sixteen messages at a time come to what libcrypto makes of each, by every way this CPU has. The source itself is
 * included: from outside the best way alone can be reached. */
#include "base/sha256-lanes.c"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

enum { LEN_MAX = 8192, SKEW = 5, TRIES = 40 };

static uint8_t data[SHA256_LANES * LEN_MAX + SKEW];
static uint64_t seed = 1;

static uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

typedef void (*lanes_fn)(struct digest *ret, const void *buf, size_t len_bytes);

static void check_lanes(lanes_fn lanes, const uint8_t *at, size_t len)
{
	struct digest got[SHA256_LANES], want;

	lanes(got, at, len);
	for (size_t i = 0; i < SHA256_LANES; i++) {
		CHECK(digest_buffer(&want, at + i * len, len) == 0);
		CHECK(!memcmp(&got[i], &want, sizeof(want)));
	}
}

static void check_way(lanes_fn lanes)
{
	memset(data, 0, sizeof(data));
	check_lanes(lanes, data, LEN_MAX);
	memset(data, 0xff, sizeof(data));
	check_lanes(lanes, data, LEN_MAX);
	for (int round = 0; round < TRIES; round++) {
		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = (uint8_t)next();
		check_lanes(lanes, data + round % SKEW,
			    next() % (LEN_MAX / SHA256_BLOCK_BYTES + 1) * SHA256_BLOCK_BYTES);
	}
}

int main(void)
{
	if (!sha256_has_lanes())
		SKIP("this CPU has neither AVX-512 nor SHA instructions");
#ifdef __x86_64__
	if (has_avx512())
		check_way(lanes_avx512);
	if (has_sha())
		check_way(lanes_sha);
#endif
	check_way(sha256_lanes);
	return 0;
}
