// SPDX-License-Identifier: MIT
/*
 * The digest kernels, from the source that the GPU's are made of, a thread after the other. Where the CPU
 * can, leaves are digested many at a time by what brumate has for host memory: they would be a quarter of
 * all that the tests compute. That the source computes the same is for its unit test.
 */
#include "sim.h"
#include "base/sha256-lanes.h"

#include <string.h>

typedef struct {
	uint32_t x, y, z, w;
} uint4;

/* The place of the one thread that runs: kernels of several contexts run at once. */
static _Thread_local struct {
	uint32_t x;
} block_index, thread_index;
static const struct {
	uint32_t x;
} block_dim = { 1 };

#define blockIdx		      block_index
#define threadIdx		      thread_index
#define blockDim		      block_dim
#define make_uint4(a, b, c, d)	      ((uint4){ (a), (b), (c), (d) })
#define __funnelshift_r(low, high, n) ((low) >> (n) | (high) << (32 - (n)))
#define __byte_perm(x, y, selector)   __builtin_bswap32(x)
#define __device__
#define __constant__
#define __forceinline__ inline
#define KERNEL(threads) static void
#pragma GCC diagnostic ignored "-Wunknown-pragmas"
#include "gpu/cuda/digest.cu"

_Static_assert(LEAVES % SHA256_LANES == 0 && sizeof(struct digest) == 2 * sizeof(uint4), "leaves");

/* As many of the first of @n leaves as can be had at a time. Returns how many they were. */
static uint64_t digest_lanes(const uint4 *data, uint64_t n, uint4 *leaves, u32 *nonzero)
{
	uint64_t whole = sha256_has_lanes() ? n / SHA256_LANES * SHA256_LANES : 0;
	const char *bytes = (const char *)data;

	for (uint64_t i = 0; i < whole; i += SHA256_LANES) {
		const char *first = bytes + i * LEAF_BYTES;

		sha256_lanes((struct digest *)(leaves + 2 * i), first, LEAF_BYTES);
		if (*first || memcmp(first, first + 1, SHA256_LANES * LEAF_BYTES - 1)) /* any bit */
			nonzero[i / LEAVES] = 1;
	}
	return whole;
}

CUresult kernel_digest_leaves(CUcontext ctx, const uint64_t *params)
{
	uint64_t n = params[1], chunks = (n + LEAVES - 1) / LEAVES;
	const uint4 *data = kernel_reach(ctx, params[0], n, LEAF_BYTES);
	uint4 *leaves = kernel_reach(ctx, params[2], n * 2, sizeof(uint4));
	u32 *nonzero = kernel_reach(ctx, params[3], chunks, sizeof(u32));

	if (!data || !leaves || !nonzero || n > UINT32_MAX)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (block_index.x = (u32)digest_lanes(data, n, leaves, nonzero); block_index.x < n;
	     block_index.x++)
		brumate_digest_leaves(data, n, leaves, nonzero);
	return CUDA_SUCCESS;
}

CUresult kernel_digest_chunks(CUcontext ctx, const uint64_t *params)
{
	uint64_t n = params[1], chunk_leaves = params[2];
	const u32 *leaves = kernel_reach(ctx, params[0], n * chunk_leaves * 8, sizeof(u32));
	const u32 *prefix = kernel_reach(ctx, params[3], PREFIX_WORDS, sizeof(u32));
	u32 *chunks = kernel_reach(ctx, params[4], n * 8, sizeof(u32));

	if (!leaves || !prefix || !chunks || n > UINT32_MAX)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (block_index.x = 0; block_index.x < n; block_index.x++)
		brumate_digest_chunks(leaves, n, (u32)chunk_leaves, prefix, chunks);
	return CUDA_SUCCESS;
}
