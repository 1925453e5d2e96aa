// SPDX-License-Identifier: MIT
/*
 * The kernel of digest.cu, run on the CPU a thread after the other, against chunk_digest(): that it
 * computes the right thing does not take a GPU to see. That digest.ptx is made of it does.
 */
#include <stdlib.h>
#include <string.h>

#include "base/chunk.h"
#include "check.h"

typedef struct {
	uint32_t x, y, z, w;
} uint4;
static struct {
	uint32_t x;
} blockIdx, blockDim = { 1 }, threadIdx;

static uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w)
{
	return (uint4){ x, y, z, w };
}

static uint32_t __funnelshift_r(uint32_t low, uint32_t high, int n)
{
	return low >> n | high << (32 - n);
}

static uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector)
{
	CHECK(y == 0 && selector == 0x0123);
	return __builtin_bswap32(x);
}

#define __device__
#define __constant__
#define __forceinline__ inline
#define KERNEL(threads) static void
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "gpu/cuda/digest.cu"

enum { PREFIX_WORDS = 6 };

/* What the broker makes the second kernel's prefix of. */
static void make_prefix(uint32_t ret[PREFIX_WORDS], uint64_t len_bytes)
{
	char prefix[24] = "brumate-chunk-1";

	memcpy(prefix + 16, &len_bytes, sizeof(len_bytes));
	memcpy(ret, prefix, sizeof(prefix));
}

static void compare(const uint8_t *chunks, size_t n, size_t chunk_bytes)
{
	uint32_t n_leaves = (uint32_t)(chunk_bytes / CHUNK_LEAF_BYTES), prefix[PREFIX_WORDS];
	uint4 *leaves = calloc(n * n_leaves, DIGEST_BYTES);
	struct digest *have = calloc(n, sizeof(*have)), want;
	u32 nonzero[8] = { 0 };

	CHECK(leaves && have);
	for (blockIdx.x = 0; blockIdx.x < n * n_leaves; blockIdx.x++)
		brumate_digest((const u32 *)chunks, n * n_leaves, LEAF_BYTES / 4, NULL, 0, leaves,
			       nonzero);
	make_prefix(prefix, chunk_bytes);
	for (blockIdx.x = 0; blockIdx.x < n; blockIdx.x++)
		brumate_digest((const u32 *)leaves, n, n_leaves * 8, prefix, PREFIX_WORDS,
			       (uint4 *)have, NULL);
	for (size_t i = 0; i < n; i++) {
		CHECK(chunk_digest(&want, chunks + i * chunk_bytes, chunk_bytes) == 0);
		CHECK(!memcmp(&want, &have[i], sizeof(want)));
		if (chunk_bytes == CHUNK_BYTES_MAX)
			CHECK(!nonzero[i] == chunk_is_zero(chunks + i * chunk_bytes, chunk_bytes));
	}
	free(leaves);
	free(have);
}

int main(void)
{
	uint8_t *memory = calloc(4, CHUNK_BYTES_MAX);

	CHECK(memory);
	for (size_t i = 0; i < 2u * CHUNK_BYTES_MAX; i++)
		memory[i] = (uint8_t)((i * 2654435761u) >> 13);
	memory[3u * CHUNK_BYTES_MAX - 1] =
		1; /* all zero but for the last byte; the fourth is all zero */
	compare(memory, 4, CHUNK_BYTES_MAX);
	/* Every way in which a message can end in its last block. */
	for (size_t leaves = 1; leaves <= 9; leaves++)
		compare(memory, 2, leaves * CHUNK_LEAF_BYTES);
	free(memory);
	return 0;
}
