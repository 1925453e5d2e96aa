// SPDX-License-Identifier: MIT
/*
 * The limit of the stacks of kernels, and the device memory that a context keeps for them. Kernels are
 * plain C and need none of it: it is there to be counted, saved with a checkpoint and missed by others.
 */
#include "sim.h"

enum { STACK_MAX_BYTES = 512 << 10 };

/* H200: 260 MiB at the limit of 1024 bytes, in proportion at others. */
CUresult stacks_take(CUcontext ctx)
{
	uint64_t bytes = config_get()->stacks_bytes * ctx->stack_bytes / SIM_STACK_BYTES;

	if (!bytes)
		return CUDA_SUCCESS;
	return vram_result(vram_create(&ctx->stacks, sim.gpu_of[ctx->device],
				       round_up(bytes, SIM_PAGE_BYTES)));
}

uint64_t stacks_bytes(void)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < sim.contexts.n; i++) {
		CUcontext ctx = sim.contexts.slots[i].value;

		sum += ctx->stacks.holder ? ctx->stacks.bytes : 0;
	}
	return sum;
}

static CUresult get_limit(CUcontext ctx, size_t *value, CUlimit limit)
{
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (limit != CU_LIMIT_STACK_SIZE)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	*value = ctx->stack_bytes;
	return CUDA_SUCCESS;
}

static CUresult set_limit(CUcontext ctx, CUlimit limit, size_t value)
{
	size_t before = ctx->stack_bytes;
	CUresult r;

	if (limit != CU_LIMIT_STACK_SIZE)
		return CUDA_ERROR_UNSUPPORTED_LIMIT;
	if (value > STACK_MAX_BYTES)
		return CUDA_ERROR_INVALID_VALUE;
	/* H200: at once, but behind the kernels that run. */
	context_wait_idle(ctx);
	vram_drop(&ctx->stacks);
	ctx->stack_bytes = value;
	r = stacks_take(ctx);
	if (!r)
		return CUDA_SUCCESS;
	ctx->stack_bytes = before;
	stacks_take(ctx);
	return r;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	return API_CTX_LOCKED(get_limit(ctx, value, limit));
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	return API_CTX_LOCKED(set_limit(ctx, limit, value));
}
