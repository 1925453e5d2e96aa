// SPDX-License-Identifier: MIT
/*
 * The kernels a simulated GPU can run, by the names that the test programs' PTX gives them. Each does all of its
 * work, for any grid size. One that would touch memory its context may not touch ends as on hardware: with an error
 * that stays in the context.
 */
#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "sim.h"

enum { AWAIT_PAUSE_MAX_NS = 500000 };

/* The memory at @ptr, or NULL when the context may not touch all @n elements of @bytes. */
void *kernel_reach(CUcontext ctx, uint64_t ptr, uint64_t n, size_t bytes)
{
	uint64_t total;
	bool ok;

	if (__builtin_mul_overflow(n, bytes, &total) || ptr % bytes)
		return NULL;
	pthread_mutex_lock(&sim.lock);
	ok = memory_reachable(ptr, total, ctx);
	pthread_mutex_unlock(&sim.lock);
	return ok ? (void *)(uintptr_t)ptr : NULL;
}

/* p[i] = (base + i) * 2654435761 */
static CUresult fill_u64(CUcontext ctx, const uint64_t *params)
{
	uint64_t *p = kernel_reach(ctx, params[0], params[1], sizeof(*p)), base = params[2];

	if (!p)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < params[1]; i++)
		p[i] = (base + i) * 2654435761u;
	return CUDA_SUCCESS;
}

/* Nothing that could be made smaller: the i-th number of SplitMix64 from that seed. */
static CUresult random_u64(CUcontext ctx, const uint64_t *params)
{
	uint64_t *p = kernel_reach(ctx, params[0], params[1], sizeof(*p)), seed = params[2];

	if (!p)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < params[1]; i++) {
		uint64_t z = seed + i * 0x9e3779b97f4a7c15u;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		p[i] = z ^ z >> 31;
	}
	return CUDA_SUCCESS;
}

static CUresult add_u64(CUcontext ctx, const uint64_t *params)
{
	uint64_t *p = kernel_reach(ctx, params[0], params[1], sizeof(*p)), value = params[2];

	if (!p)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < params[1]; i++)
		p[i] += value;
	return CUDA_SUCCESS;
}

static CUresult add_array_u64(CUcontext ctx, const uint64_t *params)
{
	uint64_t *dst = kernel_reach(ctx, params[0], params[2], sizeof(*dst));
	const uint64_t *src = kernel_reach(ctx, params[1], params[2], sizeof(*src));

	if (!dst || !src)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < params[2]; i++)
		dst[i] += src[i];
	return CUDA_SUCCESS;
}

static CUresult sum_u64(CUcontext ctx, const uint64_t *params)
{
	const uint64_t *p = kernel_reach(ctx, params[0], params[1], sizeof(*p));
	uint64_t *out = kernel_reach(ctx, params[2], 1, sizeof(*out)), sum = 0;

	if (!p || !out)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < params[1]; i++)
		sum += p[i];
	__atomic_fetch_add(out, sum, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

static CUresult inc_u32(CUcontext ctx, const uint64_t *params)
{
	uint32_t *p = kernel_reach(ctx, params[0], params[1], sizeof(*p));

	if (!p)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < params[1]; i++)
		p[i]++;
	return CUDA_SUCCESS;
}

static CUresult copy_u32(CUcontext ctx, const uint64_t *params)
{
	uint32_t *dst = kernel_reach(ctx, params[0], params[2], sizeof(*dst));
	const uint32_t *src = kernel_reach(ctx, params[1], params[2], sizeof(*src));

	if (!dst || !src)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	memmove(dst, src, params[2] * sizeof(*dst));
	return CUDA_SUCCESS;
}

/* Keeps the device busy, not the CPU. */
static CUresult spin_ns(CUcontext ctx, const uint64_t *params)
{
	uint64_t end = clock_now_ns() + params[0];
	struct timespec until = { (time_t)(end / NS_PER_S), (long)(end % NS_PER_S) };

	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR)
		;
	return CUDA_SUCCESS;
}

static CUresult store_u32(CUcontext ctx, const uint64_t *params)
{
	uint32_t *p = kernel_reach(ctx, params[0], 1, sizeof(*p));

	if (!p)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	__atomic_store_n(p, (uint32_t)params[1], __ATOMIC_RELEASE);
	return CUDA_SUCCESS;
}

/* Another process writes it, without a notification. Checks less often the longer it takes, as many may wait. */
static CUresult await_u32(CUcontext ctx, const uint64_t *params)
{
	struct timespec pause = { .tv_nsec = 20000 };
	const uint32_t *p = kernel_reach(ctx, params[0], 1, sizeof(*p));

	if (!p)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	while ((int32_t)(__atomic_load_n(p, __ATOMIC_ACQUIRE) - (uint32_t)params[1]) < 0) {
		nanosleep(&pause, NULL);
		if (pause.tv_nsec < AWAIT_PAUSE_MAX_NS)
			pause.tv_nsec += pause.tv_nsec / 16;
	}
	return CUDA_SUCCESS;
}

static const struct kernel kernels[] = {
	{ "brumate_fill_u64", 3, { 8, 8, 8 }, fill_u64 },	    /* p, n, base */
	{ "brumate_random_u64", 3, { 8, 8, 8 }, random_u64 },	    /* p, n, seed */
	{ "brumate_add_u64", 3, { 8, 8, 8 }, add_u64 },		    /* p, n, value */
	{ "brumate_add_array_u64", 3, { 8, 8, 8 }, add_array_u64 }, /* dst, src, n */
	{ "brumate_sum_u64", 3, { 8, 8, 8 }, sum_u64 },	  /* p, n, out: added to atomically */
	{ "brumate_inc_u32", 2, { 8, 8 }, inc_u32 },	  /* p, n */
	{ "brumate_copy_u32", 3, { 8, 8, 8 }, copy_u32 }, /* dst, src, n */
	{ "brumate_spin_ns", 1, { 8 }, spin_ns },	  /* ns */
	{ "brumate_store_u32", 2, { 8, 4 }, store_u32 },  /* p, value */
	{ "brumate_await_u32", 2, { 8, 4 }, await_u32 },  /* p, value */
	{ "brumate_digest", 7, { 8, 8, 4, 8, 4, 8, 8 }, kernel_digest },
};

const struct kernel *kernel_find(const char *name, size_t len)
{
	for (size_t i = 0; i < sizeof(kernels) / sizeof(*kernels); i++)
		if (!strncmp(kernels[i].name, name, len) && !kernels[i].name[len])
			return &kernels[i];
	return NULL;
}
