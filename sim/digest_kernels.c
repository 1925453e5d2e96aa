// SPDX-License-Identifier: MIT
/*
 * The digest kernel, from the source that the GPU's are made of, a thread after the other. Leaves are digested by
 * libcrypto in a process that has it, as the broker does: they would be a quarter of all that the tests compute. That the
 * source computes the same is for its unit test.
 */
#include "sim.h"

#include <dlfcn.h>
#include <pthread.h>
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

/* SHA256() of libcrypto, which the programs of jobs are not made to load; NULL: there is none in this process. */
static unsigned char *(*sha256)(const unsigned char *data, size_t len_bytes, unsigned char *ret);

static void find_sha256(void)
{
	void *library = dlopen("libcrypto.so.3", RTLD_LAZY | RTLD_NOLOAD);

	if (library)
		sha256 = (__typeof__(sha256))dlsym(library, "SHA256");
}

/* @n leaves by libcrypto, which needs memory for each, as a GPU does not. Returns how many of the first were digested. */
static uint64_t digest_leaves(const uint4 *data, uint64_t n, uint4 *leaves, u32 *nonzero)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, find_sha256);
	if (!sha256)
		return 0;
	for (uint64_t i = 0; i < n; i++) {
		const unsigned char *leaf = (const unsigned char *)data + i * LEAF_BYTES;

		if (!sha256(leaf, LEAF_BYTES, (unsigned char *)(leaves + 2 * i)))
			return i;
		if (*leaf || memcmp(leaf, leaf + 1, LEAF_BYTES - 1)) /* any bit */
			nonzero[i / LEAVES] = 1;
	}
	return n;
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
				? (u32)digest_leaves((const uint4 *)data, n, digests, nonzero)
				: 0;
	for (; block_index.x < n; block_index.x++)
		brumate_digest(data, n, words, prefix, prefix_words, digests, nonzero);
	return CUDA_SUCCESS;
}
