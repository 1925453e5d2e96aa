// SPDX-License-Identifier: MIT
/*
 * The driver's functions that we call, and the wrappers: each is what the driver's function of its kind is
 * to a program, and is called inside the gate. The driver has _ptds and _ptsz variants of some for programs
 * whose default stream is one of each thread.
 */
#pragma once

#include <stdbool.h>

#include "gpu/cuda/abi.h"

struct context;

/** The driver's functions that wrappers call: not through the gate. Filled before any wrapper runs;
 * one that this driver lacks is NULL. One row per function in driver.def (CALL rows). */
struct driver_calls {
#define CALL(name) __typeof__(name) *name;
#define ENTRY(name)
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
};
extern struct driver_calls driver;

/** The driver's number for a result of interpose/core, for the program. */
CUresult to_driver(int result);

/** The calling thread's context; NULL and the driver's own answer where it has none that works. */
struct context *context_current(CUresult *ret_error);
/** The program made or got it. */
void context_note(CUcontext handle, bool green);

/* managed.c */
/** Memory for what the driver calls managed. CUDA_ERROR_NOT_SUPPORTED: it is to be the driver's. */
CUresult managed_alloc(CUdeviceptr *ret, size_t bytes, unsigned int flags);
/** Frees what starts at @ptr; false: it is no such memory. */
bool managed_free(CUdeviceptr ptr, CUresult *ret);
/** Frees all of a context that is gone. */
void managed_drop(CUcontext context);

/* share.c: as the driver's functions, which they call */
__typeof__(cuMemExportToShareableHandle) share_memory;
__typeof__(cuMemImportFromShareableHandle) share_memory_import;

/* backend.c */
/** The description of what a piece is made of, as the program gave it. */
struct memory_kind;
CUmemAllocationProp prop_of(const struct memory_kind *kind);
struct memory_kind kind_of(const CUmemAllocationProp *prop);

/* ---- the wrappers: each has the type of the function that it stands for ---- */

/* memory.c */
__typeof__(cuMemAlloc_v2) memory_alloc;
__typeof__(cuMemAllocPitch_v2) memory_alloc_pitch;
__typeof__(cuMemAllocManaged) memory_alloc_managed;
__typeof__(cuMemFree_v2) memory_free;
__typeof__(cuMemGetInfo_v2) memory_info;
__typeof__(cuMemGetAddressRange_v2) pointer_range;
__typeof__(cuPointerGetAttribute) pointer_get;
__typeof__(cuPointerGetAttributes) pointer_get_many;
__typeof__(cuPointerSetAttribute) pointer_set;

/* managed.c */
__typeof__(cuMemAdvise) managed_advise;
__typeof__(cuMemAdvise_v2) managed_advise_v2;
__typeof__(cuMemPrefetchAsync) managed_prefetch;
__typeof__(cuMemPrefetchAsync_ptsz) managed_prefetch_ptsz;
__typeof__(cuMemPrefetchAsync_v2) managed_prefetch_v2;
__typeof__(cuMemPrefetchAsync_v2_ptsz) managed_prefetch_v2_ptsz;
__typeof__(cuMemRangeGetAttribute) managed_range;
__typeof__(cuMemRangeGetAttributes) managed_ranges;
__typeof__(cuStreamAttachMemAsync) managed_attach;
__typeof__(cuStreamAttachMemAsync_ptsz) managed_attach_ptsz;

/* share.c */
__typeof__(cuIpcGetMemHandle) ipc_get;
__typeof__(cuIpcOpenMemHandle_v2) ipc_open;
__typeof__(cuIpcCloseMemHandle) ipc_close;
__typeof__(cuIpcGetEventHandle) event_get;
__typeof__(cuIpcOpenEventHandle) event_open;
__typeof__(cuEventDestroy_v2) event_destroy;
__typeof__(cuEventCreate) event_create;
__typeof__(cuEventRecord) event_record;
__typeof__(cuEventRecord_ptsz) event_record_ptsz;
__typeof__(cuEventRecordWithFlags) event_record_flags;
__typeof__(cuEventRecordWithFlags_ptsz) event_record_flags_ptsz;
__typeof__(cuCtxRecordEvent) event_record_context;
__typeof__(cuGreenCtxRecordEvent) event_record_green;
__typeof__(cuStreamWaitEvent) event_wait;
__typeof__(cuStreamWaitEvent_ptsz) event_wait_ptsz;
__typeof__(cuCtxWaitEvent) event_wait_context;
__typeof__(cuGreenCtxWaitEvent) event_wait_green;
__typeof__(cuEventQuery) event_query;
__typeof__(cuEventSynchronize) event_synchronize;
__typeof__(cuGraphAddEventRecordNode) event_add_record;
__typeof__(cuGraphAddEventWaitNode) event_add_wait;
__typeof__(cuGraphEventRecordNodeSetEvent) event_set_record;
__typeof__(cuGraphEventWaitNodeSetEvent) event_set_wait;
__typeof__(cuGraphExecEventRecordNodeSetEvent) event_exec_record;
__typeof__(cuGraphExecEventWaitNodeSetEvent) event_exec_wait;
__typeof__(cuMemPoolExportToShareableHandle) share_pool;
__typeof__(cuMemPoolImportFromShareableHandle) share_pool_import;

/* vmm.c */
__typeof__(cuMemAddressReserve) vmm_reserve;
__typeof__(cuMemAddressFree) vmm_unreserve;
__typeof__(cuMemCreate) vmm_create;
__typeof__(cuMemRelease) vmm_release;
__typeof__(cuMemMap) vmm_map;
__typeof__(cuMemUnmap) vmm_unmap;
__typeof__(cuMemSetAccess) vmm_set_access;
__typeof__(cuMemExportToShareableHandle) vmm_export;
__typeof__(cuMemImportFromShareableHandle) vmm_import;
__typeof__(cuMemRetainAllocationHandle) vmm_retain;
__typeof__(cuMemGetAllocationPropertiesFromHandle) vmm_properties;
__typeof__(cuMulticastCreate) multicast_create;
__typeof__(cuDeviceGetAttribute) device_attribute;
__typeof__(cuMulticastBindMem) vmm_bind;
__typeof__(cuMulticastBindAddr) vmm_bind_address;
__typeof__(cuMemGetHandleForAddressRange) vmm_range_handle;

/* capture.c */
__typeof__(cuStreamBeginCapture) capture_begin_old;
__typeof__(cuStreamBeginCapture_ptsz) capture_begin_old_ptsz;
__typeof__(cuStreamBeginCapture_v2) capture_begin;
__typeof__(cuStreamBeginCapture_v2_ptsz) capture_begin_ptsz;
__typeof__(cuStreamBeginCaptureToGraph) capture_begin_to_graph;
__typeof__(cuStreamBeginCaptureToGraph_ptsz) capture_begin_to_graph_ptsz;
__typeof__(cuStreamEndCapture) capture_end;
__typeof__(cuStreamEndCapture_ptsz) capture_end_ptsz;
__typeof__(cuStreamDestroy_v2) capture_stream_destroyed;

/* parked.c */
__typeof__(cuThreadExchangeStreamCaptureMode) parked_exchange_mode;
__typeof__(cuCtxSetCurrent) parked_set_context;
__typeof__(cuCtxGetCurrent) parked_get_context;
__typeof__(cuCtxPushCurrent_v2) parked_push_context;
__typeof__(cuCtxPopCurrent_v2) parked_pop_context;
/** Keeps what the program gets as an answer, for when it asks again while the GPU is away. */
void parked_note_memory(size_t free_bytes, size_t total_bytes);

/* peer.c */
__typeof__(cuCtxEnablePeerAccess) peer_enable;
__typeof__(cuCtxDisablePeerAccess) peer_disable;
__typeof__(cuMemcpy) copy_any;
__typeof__(cuMemcpy_ptds) copy_any_ptds;
__typeof__(cuMemcpyAsync) copy_any_async;
__typeof__(cuMemcpyAsync_ptsz) copy_any_async_ptsz;
__typeof__(cuMemcpyDtoD_v2) copy_device;
__typeof__(cuMemcpyDtoD_v2_ptds) copy_device_ptds;
__typeof__(cuMemcpyDtoDAsync_v2) copy_device_async;
__typeof__(cuMemcpyDtoDAsync_v2_ptsz) copy_device_async_ptsz;
__typeof__(cuMemcpyPeer) copy_peer;
__typeof__(cuMemcpyPeer_ptds) copy_peer_ptds;
__typeof__(cuMemcpyPeerAsync) copy_peer_async;
__typeof__(cuMemcpyPeerAsync_ptsz) copy_peer_async_ptsz;
