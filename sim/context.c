// SPDX-License-Identifier: MIT
/*
 * Contexts: primary and created ones, the stack of current ones of each thread, peer access. A
 * context takes a piece of its GPU's memory for as long as it is alive. Context objects are never
 * freed, so that a stale handle in some thread's stack is recognised.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"
#include "sim.h"

enum { STACK_MAX = 64 };

static _Thread_local struct {
	CUcontext at[STACK_MAX];
	int n;
} stack;

CUcontext sim_context_current(void)
{
	return stack.n ? stack.at[stack.n - 1] : NULL;
}

static CUresult take_vram(CUcontext ctx)
{
	uint64_t bytes = config_get()->context_bytes;
	int gpu = sim.gpu_of[ctx->device];
	CUresult r = CUDA_SUCCESS;

	if (bytes)
		r = vram_result(vram_create(&ctx->vram, gpu, bytes));
	if (!r)
		r = stacks_take(ctx);
	if (r)
		vram_drop(&ctx->vram);
	return r;
}

static void drop_vram(CUcontext ctx)
{
	vram_drop(&ctx->vram);
	vram_drop(&ctx->stacks);
}

void contexts_drop_vram(void)
{
	for (size_t i = 0; i < sim.contexts.n; i++) {
		CUcontext ctx = sim.contexts.slots[i].value;

		drop_vram(ctx);
	}
}

CUresult contexts_take_vram(void)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < sim.contexts.n && !r; i++) {
		CUcontext ctx = sim.contexts.slots[i].value;

		if (ctx->alive)
			r = take_vram(ctx);
	}
	return r;
}

bool contexts_have_peers(void)
{
	for (size_t i = 0; i < sim.contexts.n; i++) {
		CUcontext ctx = sim.contexts.slots[i].value;

		if (ctx->alive && ctx->peers)
			return true;
	}
	return false;
}

CUresult contexts_error(void)
{
	CUresult error = CUDA_SUCCESS;

	for (size_t i = 0; i < sim.contexts.n && !error; i++) {
		CUcontext ctx = sim.contexts.slots[i].value;

		error = ctx->alive ? ctx->error : CUDA_SUCCESS;
	}
	return error;
}

/* Brings a context to life: new, or the primary one again. */
static CUresult revive(CUcontext ctx, unsigned int flags)
{
	uint64_t used;
	CUresult r;

	/* Where memory of dead processes is given back, at the latest. */
	if (vram_used(sim.gpu_of[ctx->device], &used) < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	ctx->stack_bytes = SIM_STACK_BYTES;
	r = take_vram(ctx);
	if (r)
		return r;
	r = sim_stream_new(ctx, 0, true, &ctx->null_stream);
	if (r) {
		drop_vram(ctx);
		return r;
	}
	ctx->flags = flags;
	ctx->error = CUDA_SUCCESS;
	ctx->peers = 0;
	ctx->alive = true;
	return CUDA_SUCCESS;
}

static CUresult context_new(CUdevice dev, CUcontext *ret)
{
	CUcontext ctx = calloc(1, sizeof(*ctx));

	if (!ctx || handle_add(&sim.contexts, ctx) < 0) {
		free(ctx);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ctx->device = dev;
	*ret = ctx;
	return CUDA_SUCCESS;
}

static void retire_streams(CUcontext ctx)
{
	for (size_t i = sim.streams.n; i-- > 0;) {
		CUstream stream = sim.streams.slots[i].value;

		if (stream->ctx == ctx && !stream->is_null && !stream->destroyed)
			stream_retire(stream);
	}
	stream_retire(ctx->null_stream);
	ctx->null_stream = NULL;
}

static void kill_context(CUcontext ctx)
{
	context_wait_idle(ctx);
	ctx->alive = false;
	retire_streams(ctx);
	context_unload_modules(ctx);
	memory_free_of_context(ctx);
	drop_vram(ctx);
	ctx->retained = 0;
}

void context_wait_idle(CUcontext ctx)
{
	streams_wait(ctx, DEADLINE_NEVER);
}

static CUresult primary_retain(CUcontext *ret, CUdevice dev)
{
	CUresult r = CUDA_SUCCESS;

	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!sim.primary[dev]) {
		r = context_new(dev, &sim.primary[dev]);
		if (r)
			return r;
		sim.primary[dev]->primary = true;
	}
	if (!sim.primary[dev]->alive)
		r = revive(sim.primary[dev], sim.primary[dev]->flags);
	if (r)
		return r;
	sim.primary[dev]->retained++;
	*ret = sim.primary[dev];
	return CUDA_SUCCESS;
}

static CUresult primary_release(CUdevice dev)
{
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!sim.primary[dev] || !sim.primary[dev]->alive)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!--sim.primary[dev]->retained)
		kill_context(sim.primary[dev]);
	return CUDA_SUCCESS;
}

static CUresult primary_reset(CUdevice dev)
{
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (sim.primary[dev] && sim.primary[dev]->alive)
		kill_context(sim.primary[dev]);
	return CUDA_SUCCESS;
}

static CUresult primary_state(CUdevice dev, unsigned int *flags, int *active)
{
	if (!flags || !active)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*flags = sim.primary[dev] ? sim.primary[dev]->flags : 0;
	*active = sim.primary[dev] && sim.primary[dev]->alive;
	return CUDA_SUCCESS;
}

static CUresult primary_flags(CUdevice dev, unsigned int flags)
{
	CUresult r = CUDA_SUCCESS;

	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (flags & ~(unsigned int)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim.primary[dev])
		r = context_new(dev, &sim.primary[dev]);
	if (r)
		return r;
	sim.primary[dev]->primary = true;
	sim.primary[dev]->flags = flags;
	return CUDA_SUCCESS;
}

static CUresult push(CUcontext ctx)
{
	if (!handle_valid(&sim.contexts, ctx) || stack.n == STACK_MAX)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!ctx->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	stack.at[stack.n++] = ctx;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *ret, unsigned int flags, CUdevice dev)
{
	CUcontext ctx;
	CUresult r;

	if (!ret || flags & ~(unsigned int)CU_CTX_FLAGS_MASK)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	r = context_new(dev, &ctx);
	if (!r)
		r = revive(ctx, flags);
	if (!r)
		r = push(ctx);
	if (!r)
		*ret = ctx;
	return r;
}

static CUresult destroy(CUcontext ctx)
{
	if (!handle_valid(&sim.contexts, ctx) || ctx->primary)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!ctx->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	kill_context(ctx);
	if (sim_context_current() == ctx)
		stack.n--;
	return CUDA_SUCCESS;
}

static CUresult pop(CUcontext *ret)
{
	if (!stack.n)
		return CUDA_ERROR_INVALID_CONTEXT;
	stack.n--;
	if (ret)
		*ret = stack.at[stack.n];
	return CUDA_SUCCESS;
}

static CUresult set_current(CUcontext ctx)
{
	int kept = stack.n;
	CUresult r;

	if (stack.n)
		stack.n--;
	r = ctx ? push(ctx) : CUDA_SUCCESS;
	if (r)
		stack.n = kept;
	return r;
}

static CUresult get_current(CUcontext *ret)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = sim_context_current();
	return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *ret)
{
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	if (!sim_context_current())
		return CUDA_ERROR_INVALID_CONTEXT;
	*ret = sim_context_current()->device;
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext ctx)
{
	CUresult r = capture_forbids(ctx, NULL);

	if (r)
		return r;
	context_wait_idle(ctx);
	return ctx->error;
}

static CUresult enable_peer(CUcontext ctx, CUcontext peer, unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_valid(&sim.contexts, peer) || !peer->alive || peer->device == ctx->device)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!config_get()->peers)
		return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
	if (ctx->peers & 1ull << peer->device)
		return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	ctx->peers |= 1ull << peer->device;
	return CUDA_SUCCESS;
}

static CUresult disable_peer(CUcontext ctx, CUcontext peer)
{
	if (!handle_valid(&sim.contexts, peer))
		return CUDA_ERROR_INVALID_CONTEXT;
	if (!(ctx->peers & 1ull << peer->device))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	context_wait_idle(ctx);
	ctx->peers &= ~(1ull << peer->device);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	return API_LOCKED(primary_retain(ctx, dev));
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	return API_LOCKED(primary_release(dev));
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	return API_LOCKED(primary_reset(dev));
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	return API_LOCKED(primary_state(dev, flags, active));
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	return API_LOCKED(primary_flags(dev, flags));
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	return API_LOCKED(create(ctx, flags, dev));
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	return API_LOCKED(destroy(ctx));
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	return API_LOCKED(push(ctx));
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	return API(pop(ctx));
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	return API_LOCKED(set_current(ctx));
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	return API(get_current(ctx));
}

CUresult cuCtxGetDevice(CUdevice *dev)
{
	return API(get_device(dev));
}

CUresult cuCtxSynchronize(void)
{
	return API_CTX_LOCKED(synchronize(ctx));
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	return API_CTX_LOCKED(enable_peer(ctx, peer, flags));
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	return API_CTX_LOCKED(disable_peer(ctx, peer));
}
