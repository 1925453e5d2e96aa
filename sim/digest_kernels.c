// SPDX-License-Identifier: MIT
/*
 * The digest kernel, from the source that the GPU's are made of, a thread after the other. Where the CPU
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

CUresult kernel_digest(CUcontext ctx, const uint64_t *params)
{
	const uint64_t n = params[1];
	const u32 words = (u32)params[2], prefix_words = (u32)params[4];
	const u32 *data = kernel_reach(ctx, params[0], n * words / 4, sizeof(uint4));
	const u32 *prefix = kernel_reach(ctx, params[3], prefix_words, sizeof(u32));
	uint4 *digests = kernel_reach(ctx, params[5], n * 2, sizeof(uint4));
	u32 *nonzero = kernel_reach(ctx, params[6], (n + LEAVES - 1) / LEAVES, sizeof(u32));

	if (!data || (prefix_words && !prefix) || !digests || (params[6] && !nonzero) ||
	    n > UINT32_MAX)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	block_index.x = nonzero && words == LEAF_BYTES / sizeof(u32)
				? (u32)digest_lanes((const uint4 *)data, n, digests, nonzero)
				: 0;
	for (; block_index.x < n; block_index.x++)
		brumate_digest(data, n, words, prefix, prefix_words, digests, nonzero);
	return CUDA_SUCCESS;
}
