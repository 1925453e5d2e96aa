// SPDX-License-Identifier: MIT
/* Sixteen messages at a time come to what libcrypto makes of each. */
#include "base/sha256-lanes.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

enum { LEN_MAX = 8192, SKEW = 5, ROUNDS = 40 };

static uint8_t data[SHA256_LANES * LEN_MAX + SKEW];
static uint64_t seed = 1;

static uint64_t next(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	return seed ^= seed << 17;
}

static void check_lanes(const uint8_t *at, size_t len)
{
	struct digest got[SHA256_LANES], want;

	sha256_lanes(got, at, len);
	for (size_t i = 0; i < SHA256_LANES; i++) {
		CHECK(digest_buffer(&want, at + i * len, len) == 0);
		CHECK(!memcmp(&got[i], &want, sizeof(want)));
	}
}

int main(void)
{
	if (!sha256_has_lanes()) {
		puts("this CPU has no AVX-512");
		return 77;
	}
	check_lanes(data, LEN_MAX); /* zeros */
	memset(data, 0xff, sizeof(data));
	check_lanes(data, LEN_MAX);
	for (int round = 0; round < ROUNDS; round++) {
		for (size_t i = 0; i < sizeof(data); i++)
			data[i] = (uint8_t)next();
		check_lanes(data + round % SKEW,
			    next() % (LEN_MAX / SHA256_BLOCK_BYTES + 1) * SHA256_BLOCK_BYTES);
	}
	return 0;
}
