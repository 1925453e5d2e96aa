// SPDX-License-Identifier: MIT
/*
 * The table of wrappers, and those that only follow which contexts there are: memory goes with its
 * context, and the gate must know whose work to wait for.
 */
#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"
#include "interpose/entry/entry.h"

static CUcontext primary[DEVICES_MAX]; /* with the tables' lock */

static CUresult note_context(CUresult r, CUcontext *ctx)
{
	if (!r)
		init_watch_end();
	if (!r && memory_managed())
		context_note(*ctx, false);
	return r;
}

static CUresult ctx_create(CUcontext *ctx, unsigned int flags, CUdevice device)
{
	return note_context(driver.cuCtxCreate_v2(ctx, flags, device), ctx);
}

static CUresult ctx_create_v3(CUcontext *ctx, void *affinity, int n_affinity, unsigned int flags,
			      CUdevice device)
{
	return note_context(driver.cuCtxCreate_v3(ctx, affinity, n_affinity, flags, device), ctx);
}

static CUresult ctx_create_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice device)
{
	return note_context(driver.cuCtxCreate_v4(ctx, params, flags, device), ctx);
}

static CUresult ctx_from_green(CUcontext *ctx, void *green)
{
	CUresult r = driver.cuCtxFromGreenCtx(ctx, green);

	if (!r && memory_managed())
		context_note(*ctx, true);
	return r;
}

static void drop_context(CUcontext ctx)
{
	blocks_drop_deferred(ctx);
	lent_drop(ctx);
	events_drop(ctx);
	managed_drop(ctx);
	context_drop(ctx);
	addresses_drop_all(); /* nothing of ours outlives what the program has done with */
}

static CUresult ctx_destroy(CUcontext ctx)
{
	CUresult r = driver.cuCtxDestroy_v2(ctx);

	if (!r)
		drop_context(ctx);
	return r;
}

static CUresult primary_retain(CUcontext *ctx, CUdevice device)
{
	CUresult r = note_context(driver.cuDevicePrimaryCtxRetain(ctx, device), ctx);

	if (r || device < 0 || device >= DEVICES_MAX)
		return r;
	memory_lock();
	primary[device] = *ctx;
	memory_unlock();
	return r;
}

static void drop_primary(CUdevice device)
{
	CUcontext ctx = NULL;

	memory_lock();
	if (device >= 0 && device < DEVICES_MAX)
		ctx = primary[device];
	memory_unlock();
	if (ctx)
		drop_context(ctx);
}

static CUresult primary_release(CUdevice device)
{
	CUresult r = driver.cuDevicePrimaryCtxRelease_v2(device);
	unsigned int flags;
	int active;

	if (!r && !driver.cuDevicePrimaryCtxGetState(device, &flags, &active) && !active)
		drop_primary(device);
	return r;
}

static CUresult primary_reset(CUdevice device)
{
	CUresult r = driver.cuDevicePrimaryCtxReset_v2(device);

	if (!r)
		drop_primary(device);
	return r;
}

/* Old names of a function whose meaning did not change are listed next to the new ones. */
const struct wrapper wrappers[] = {
	{ "cuCtxCreate_v2", ctx_create },
	{ "cuCtxCreate_v3", ctx_create_v3 },
	{ "cuCtxCreate_v4", ctx_create_v4 },
	{ "cuCtxFromGreenCtx", ctx_from_green },
	{ "cuCtxDestroy", ctx_destroy },
	{ "cuCtxDestroy_v2", ctx_destroy },
	{ "cuDevicePrimaryCtxRetain", primary_retain },
	{ "cuDevicePrimaryCtxRelease", primary_release },
	{ "cuDevicePrimaryCtxRelease_v2", primary_release },
	{ "cuDevicePrimaryCtxReset", primary_reset },
	{ "cuDevicePrimaryCtxReset_v2", primary_reset },
	{ "cuCtxSetCurrent", parked_set_context },
	{ "cuCtxGetCurrent", parked_get_context },
	{ "cuCtxPushCurrent", parked_push_context },
	{ "cuCtxPushCurrent_v2", parked_push_context },
	{ "cuCtxPopCurrent", parked_pop_context },
	{ "cuCtxPopCurrent_v2", parked_pop_context },
	{ "cuCtxEnablePeerAccess", peer_enable },
	{ "cuCtxDisablePeerAccess", peer_disable },

	{ "cuMemAlloc_v2", memory_alloc },
	{ "cuMemAllocPitch_v2", memory_alloc_pitch },
	{ "cuMemAllocManaged", memory_alloc_managed },
	{ "cuMemAdvise", managed_advise },
	{ "cuMemAdvise_v2", managed_advise_v2 },
	{ "cuMemPrefetchAsync", managed_prefetch },
	{ "cuMemPrefetchAsync_ptsz", managed_prefetch_ptsz },
	{ "cuMemPrefetchAsync_v2", managed_prefetch_v2 },
	{ "cuMemPrefetchAsync_v2_ptsz", managed_prefetch_v2_ptsz },
	{ "cuMemRangeGetAttribute", managed_range },
	{ "cuMemRangeGetAttributes", managed_ranges },
	{ "cuStreamAttachMemAsync", managed_attach },
	{ "cuStreamAttachMemAsync_ptsz", managed_attach_ptsz },
	{ "cuMemFree_v2", memory_free },
	{ "cuMemGetInfo_v2", memory_info },
	{ "cuMemGetAddressRange_v2", pointer_range },
	{ "cuPointerGetAttribute", pointer_get },
	{ "cuPointerGetAttributes", pointer_get_many },
	{ "cuPointerSetAttribute", pointer_set },

	{ "cuMemAddressReserve", vmm_reserve },
	{ "cuMemAddressFree", vmm_unreserve },
	{ "cuMemCreate", vmm_create },
	{ "cuMemRelease", vmm_release },
	{ "cuMemMap", vmm_map },
	{ "cuMemUnmap", vmm_unmap },
	{ "cuMemSetAccess", vmm_set_access },
	{ "cuMemExportToShareableHandle", vmm_export },
	{ "cuMemImportFromShareableHandle", vmm_import },
	{ "cuMemRetainAllocationHandle", vmm_retain },
	{ "cuMemGetAllocationPropertiesFromHandle", vmm_properties },

	{ "cuIpcGetMemHandle", ipc_get },
	{ "cuIpcOpenMemHandle", ipc_open },
	{ "cuIpcOpenMemHandle_v2", ipc_open },
	{ "cuIpcCloseMemHandle", ipc_close },
	{ "cuIpcGetEventHandle", event_get },
	{ "cuIpcOpenEventHandle", event_open },
	{ "cuEventDestroy", event_destroy },
	{ "cuEventDestroy_v2", event_destroy },
	{ "cuEventCreate", event_create },
	{ "cuEventRecord", event_record },
	{ "cuEventRecord_ptsz", event_record_ptsz },
	{ "cuEventRecordWithFlags", event_record_flags },
	{ "cuEventRecordWithFlags_ptsz", event_record_flags_ptsz },
	{ "cuCtxRecordEvent", event_record_context },
	{ "cuGreenCtxRecordEvent", event_record_green },
	{ "cuStreamWaitEvent", event_wait },
	{ "cuStreamWaitEvent_ptsz", event_wait_ptsz },
	{ "cuCtxWaitEvent", event_wait_context },
	{ "cuGreenCtxWaitEvent", event_wait_green },
	{ "cuEventQuery", event_query },
	{ "cuEventSynchronize", event_synchronize },
	{ "cuGraphAddEventRecordNode", event_add_record },
	{ "cuGraphAddEventWaitNode", event_add_wait },
	{ "cuGraphEventRecordNodeSetEvent", event_set_record },
	{ "cuGraphEventWaitNodeSetEvent", event_set_wait },
	{ "cuGraphExecEventRecordNodeSetEvent", event_exec_record },
	{ "cuGraphExecEventWaitNodeSetEvent", event_exec_wait },
	{ "cuMemPoolExportToShareableHandle", share_pool },
	{ "cuMemPoolImportFromShareableHandle", share_pool_import },
	{ "cuMulticastCreate", multicast_create },
	{ "cuDeviceGetAttribute", device_attribute },

	{ "cuMulticastBindMem", vmm_bind },
	{ "cuMulticastBindAddr", vmm_bind_address },
	{ "cuMemGetHandleForAddressRange", vmm_range_handle },

	{ "cuMemcpy", copy_any },
	{ "cuMemcpy_ptds", copy_any_ptds },
	{ "cuMemcpyAsync", copy_any_async },
	{ "cuMemcpyAsync_ptsz", copy_any_async_ptsz },
	{ "cuMemcpyDtoD_v2", copy_device },
	{ "cuMemcpyDtoD_v2_ptds", copy_device_ptds },
	{ "cuMemcpyDtoDAsync_v2", copy_device_async },
	{ "cuMemcpyDtoDAsync_v2_ptsz", copy_device_async_ptsz },
	{ "cuMemcpyPeer", copy_peer },
	{ "cuMemcpyPeer_ptds", copy_peer_ptds },
	{ "cuMemcpyPeerAsync", copy_peer_async },
	{ "cuMemcpyPeerAsync_ptsz", copy_peer_async_ptsz },

	{ "cuStreamBeginCapture", capture_begin_old },
	{ "cuStreamBeginCapture_ptsz", capture_begin_old_ptsz },
	{ "cuStreamBeginCapture_v2", capture_begin },
	{ "cuStreamBeginCapture_v2_ptsz", capture_begin_ptsz },
	{ "cuStreamBeginCaptureToGraph", capture_begin_to_graph },
	{ "cuStreamBeginCaptureToGraph_ptsz", capture_begin_to_graph_ptsz },
	{ "cuStreamEndCapture", capture_end },
	{ "cuStreamEndCapture_ptsz", capture_end_ptsz },
	{ "cuStreamDestroy", capture_stream_destroyed },
	{ "cuStreamDestroy_v2", capture_stream_destroyed },
	{ "cuThreadExchangeStreamCaptureMode", parked_exchange_mode },

	{ NULL, NULL },
};
