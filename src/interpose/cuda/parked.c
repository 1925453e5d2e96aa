// SPDX-License-Identifier: MIT
/*
 * Answers to calls that only look, for while the gate is closed over idle contexts: threads that watch (of NCCL, of a
 * profiler, of a server's statistics) go on, and a suspended job stays suspended. All work is done by then and no stream is
 * being captured, so the answers are those of the driver. A call that has none here waits, as one that uses the GPU does.
 */
#include <stdatomic.h>
#include <stddef.h>

#include "interpose/core/gate.h"
#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"
#include "interpose/entry/entry.h"

/* Of a query of a stream, an event or a context, and of a wait for one: nothing is pending. */
static CUresult all_is_done(void)
{
	return CUDA_SUCCESS;
}

/* cuStreamIsCapturing() and cuStreamGetCaptureInfo(): what else they return is of captures alone. */
static CUresult is_not_capturing(CUstream stream, CUstreamCaptureStatus *status)
{
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = CU_STREAM_CAPTURE_STATUS_NONE;
	return CUDA_SUCCESS;
}

/* ---- how this thread's calls get along with captures of others ---- */

static __thread struct {
	CUstreamCaptureMode mode; /* as the thread set it last */
	bool owed;		  /* the driver does not know it yet */
} own_mode __attribute__((tls_model("initial-exec")));

CUresult parked_exchange_mode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode owed = own_mode.mode;

	if (own_mode.owed && mode)
		driver.cuThreadExchangeStreamCaptureMode(&owed);
	own_mode.owed = false;
	const CUstreamCaptureMode wanted = mode ? *mode : 0;
	CUresult r = driver.cuThreadExchangeStreamCaptureMode(mode);
	if (!r && mode)
		own_mode.mode = wanted;
	return r;
}

static CUresult exchange_own_mode(CUstreamCaptureMode *mode)
{
	const CUstreamCaptureMode before = own_mode.mode;

	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	own_mode.mode = *mode;
	own_mode.owed = true;
	*mode = before;
	return CUDA_SUCCESS;
}

/* ---- which context is current ---- */

/* As this thread's last call about it left it. Known as long as no context goes, and answered while there is but one: then a
 * thread has that or none, also where another library sets it. */
static __thread struct {
	CUcontext handle;  /* NULL: not known */
	unsigned int gone; /* contexts, by then */
} own_context __attribute__((tls_model("initial-exec")));

static void note_own_context(CUcontext handle)
{
	own_context.handle = handle;
	own_context.gone = atomic_load_explicit(&memory.contexts_gone, memory_order_relaxed);
}

static bool knows_context(void)
{
	return own_context.handle && own_context.handle == atomic_load(&memory.only_context) &&
	       own_context.gone == atomic_load(&memory.contexts_gone);
}

CUresult parked_set_context(CUcontext handle)
{
	CUresult r = driver.cuCtxSetCurrent(handle);

	note_own_context(r ? NULL : handle);
	return r;
}

CUresult parked_get_context(CUcontext *handle)
{
	CUresult r = driver.cuCtxGetCurrent(handle);

	note_own_context(r ? NULL : *handle);
	return r;
}

CUresult parked_push_context(CUcontext handle)
{
	CUresult r = driver.cuCtxPushCurrent_v2(handle);

	note_own_context(r ? NULL : handle);
	return r;
}

CUresult parked_pop_context(CUcontext *handle)
{
	note_own_context(NULL);
	return driver.cuCtxPopCurrent_v2(handle);
}

static CUresult get_own_context(CUcontext *handle)
{
	if (!handle)
		return CUDA_ERROR_INVALID_VALUE;
	*handle = own_context.handle;
	return CUDA_SUCCESS;
}

/* The one that is current may be set again; another one takes the driver. */
static CUresult set_own_context(CUcontext handle)
{
	if (handle == own_context.handle)
		return CUDA_SUCCESS;
	gate_enter();
	CUresult r = parked_set_context(handle);
	gate_leave();
	return r;
}

/* ---- how much memory is free ---- */

/* The last answer that the program got, which has one GPU; of several it is not known which one is meant. */
static atomic_size_t told_free, told_total;

void parked_note_memory(size_t free_bytes, size_t total_bytes)
{
	atomic_store_explicit(&told_free, free_bytes, memory_order_relaxed);
	atomic_store_explicit(&told_total, total_bytes, memory_order_relaxed);
}

static CUresult tell_memory(size_t *free_bytes, size_t *total_bytes)
{
	if (!free_bytes || !total_bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*free_bytes = atomic_load(&told_free);
	*total_bytes = atomic_load(&told_total);
	return CUDA_SUCCESS;
}

static bool knows_memory(void)
{
	return atomic_load_explicit(&told_total, memory_order_relaxed) &&
	       !atomic_load_explicit(&memory.several_devices, memory_order_relaxed);
}

static void *const answers[ENTRY_NAMED] = {
	[ENTRY_cuCtxGetCurrent] = (void *)get_own_context,
	[ENTRY_cuCtxSetCurrent] = (void *)set_own_context,
	[ENTRY_cuCtxSynchronize] = (void *)all_is_done,
	[ENTRY_cuEventQuery] = (void *)all_is_done,
	[ENTRY_cuEventSynchronize] = (void *)all_is_done,
	[ENTRY_cuStreamQuery] = (void *)all_is_done,
	[ENTRY_cuStreamQuery_ptsz] = (void *)all_is_done,
	[ENTRY_cuStreamSynchronize] = (void *)all_is_done,
	[ENTRY_cuStreamSynchronize_ptsz] = (void *)all_is_done,
	[ENTRY_cuStreamIsCapturing] = (void *)is_not_capturing,
	[ENTRY_cuStreamIsCapturing_ptsz] = (void *)is_not_capturing,
	[ENTRY_cuStreamGetCaptureInfo] = (void *)is_not_capturing,
	[ENTRY_cuStreamGetCaptureInfo_ptsz] = (void *)is_not_capturing,
	[ENTRY_cuStreamGetCaptureInfo_v2] = (void *)is_not_capturing,
	[ENTRY_cuStreamGetCaptureInfo_v2_ptsz] = (void *)is_not_capturing,
	[ENTRY_cuStreamGetCaptureInfo_v3] = (void *)is_not_capturing,
	[ENTRY_cuStreamGetCaptureInfo_v3_ptsz] = (void *)is_not_capturing,
	[ENTRY_cuThreadExchangeStreamCaptureMode] = (void *)exchange_own_mode,
	[ENTRY_cuMemGetInfo_v2] = (void *)tell_memory,
};

void *parked_answer(unsigned int slot)
{
	if (slot >= ENTRY_NAMED || (slot == ENTRY_cuMemGetInfo_v2 && !knows_memory()))
		return NULL;
	if ((slot == ENTRY_cuCtxGetCurrent || slot == ENTRY_cuCtxSetCurrent) && !knows_context())
		return NULL;
	return answers[slot];
}
