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
struct driver {
#define CALL(name) __typeof__(name) *name;
#define ENTRY(name)
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
};
extern struct driver driver;

/** Loads and resolves the driver once; false where there is none. Cheap afterwards. */
bool driver_resolve(void);

/** Has the gate passed at exit() before the driver shuts down. Handlers run last first: it is called when the
 * driver may have registered its own, and does something the first two times. */
void init_watch_end(void);

/** Whether a result is of something that went wrong in a context and stays there. */
bool result_is_lasting(CUresult result);

/** Whether some call has returned such a result: what is done without the driver is to ask it first. */
bool calls_have_failed(void);

/** A wrapper: what an entry point of that (exported, versioned) name goes to instead of the driver.
 * The table is in wrappers.c, ended by an empty name; each is called inside the gate. */
struct wrapper {
	const char *name;
	void *function;
};
extern const struct wrapper wrappers[];

/** The driver's number for a result of interpose/core, for the program. */
CUresult to_driver(int result);

/** The calling thread's context; NULL and the driver's own answer where it has none that works. */
struct context *context_current(CUresult *ret_error);
/** The program made or got it. */
void context_note(CUcontext handle, bool green);

/* memory.c */
CUresult memory_alloc(CUdeviceptr *ret, size_t bytes);
CUresult memory_alloc_pitch(CUdeviceptr *ret, size_t *ret_pitch, size_t width, size_t height,
			    unsigned int element);
CUresult memory_alloc_managed(CUdeviceptr *ret, size_t bytes, unsigned int flags);
CUresult memory_free(CUdeviceptr ptr);
CUresult memory_info(size_t *free_bytes, size_t *total_bytes);
CUresult pointer_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr);
CUresult pointer_get(void *data, CUpointer_attribute attribute, CUdeviceptr ptr);
CUresult pointer_get_many(unsigned int count, CUpointer_attribute *attributes, void **data,
			  CUdeviceptr ptr);
CUresult pointer_set(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr);

/* managed.c */
/** Memory for what the driver calls managed. CUDA_ERROR_NOT_SUPPORTED: it is to be the driver's. */
CUresult managed_alloc(CUdeviceptr *ret, size_t bytes, unsigned int flags);
/** Frees what starts at @ptr; false: it is no such memory. */
bool managed_free(CUdeviceptr ptr, CUresult *ret);
/** Frees all of a context that is gone. */
void managed_drop(CUcontext context);
CUresult managed_advise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUdevice device);
CUresult managed_advise_v2(CUdeviceptr ptr, size_t bytes, CUmem_advise advice,
			   CUmemLocation location);
CUresult managed_prefetch(CUdeviceptr ptr, size_t bytes, CUdevice device, CUstream stream);
CUresult managed_prefetch_ptsz(CUdeviceptr ptr, size_t bytes, CUdevice device, CUstream stream);
CUresult managed_prefetch_v2(CUdeviceptr ptr, size_t bytes, CUmemLocation where, unsigned int flags,
			     CUstream stream);
CUresult managed_prefetch_v2_ptsz(CUdeviceptr ptr, size_t bytes, CUmemLocation where,
				  unsigned int flags, CUstream stream);
CUresult managed_attach(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned int flags);
CUresult managed_attach_ptsz(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned int flags);
CUresult managed_range(void *data, size_t data_bytes, CUmem_range_attribute attribute,
		       CUdeviceptr ptr, size_t bytes);
CUresult managed_ranges(void **data, size_t *data_bytes, CUmem_range_attribute *attributes,
			size_t n, CUdeviceptr ptr, size_t bytes);

/* share.c: as the driver's functions, which they call */
CUresult share_pool(void *ret, CUmemoryPool pool, CUmemAllocationHandleType type,
		    unsigned long long flags);
CUresult share_pool_import(CUmemoryPool *ret, void *handle, CUmemAllocationHandleType type,
			   unsigned long long flags);
CUresult share_memory(void *ret, CUmemGenericAllocationHandle handle,
		      CUmemAllocationHandleType type, unsigned long long flags);
CUresult share_memory_import(CUmemGenericAllocationHandle *ret, void *handle,
			     CUmemAllocationHandleType type);
CUresult event_get(CUipcEventHandle *ret, CUevent event);
CUresult event_open(CUevent *ret, CUipcEventHandle handle);
CUresult event_destroy(CUevent event);

CUresult ipc_get(CUipcMemHandle *ret, CUdeviceptr ptr);
CUresult ipc_open(CUdeviceptr *ret, CUipcMemHandle handle, unsigned int flags);
CUresult ipc_close(CUdeviceptr ptr);

/* backend.c */
/** The description of what a piece is made of, as the program gave it. */
struct memory_kind;
CUmemAllocationProp prop_of(const struct memory_kind *kind);
struct memory_kind kind_of(const CUmemAllocationProp *prop);

/* vmm.c */
CUresult vmm_reserve(CUdeviceptr *ret, size_t bytes, size_t alignment, CUdeviceptr hint,
		     unsigned long long flags);
CUresult vmm_unreserve(CUdeviceptr ptr, size_t bytes);
CUresult vmm_create(CUmemGenericAllocationHandle *ret, size_t bytes,
		    const CUmemAllocationProp *prop, unsigned long long flags);
CUresult vmm_release(CUmemGenericAllocationHandle handle);
CUresult vmm_map(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		 unsigned long long flags);
CUresult vmm_unmap(CUdeviceptr ptr, size_t bytes);
CUresult vmm_set_access(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count);
CUresult vmm_export(void *ret, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
		    unsigned long long flags);
CUresult vmm_import(CUmemGenericAllocationHandle *ret, void *os_handle,
		    CUmemAllocationHandleType type);
CUresult vmm_retain(CUmemGenericAllocationHandle *ret, void *addr);
CUresult vmm_bind(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
		  CUmemGenericAllocationHandle handle, size_t offset, size_t bytes,
		  unsigned long long flags);
CUresult vmm_bind_address(CUmemGenericAllocationHandle multicast, size_t multicast_offset,
			  CUdeviceptr ptr, size_t bytes, unsigned long long flags);
CUresult vmm_range_handle(void *ret, CUdeviceptr ptr, size_t bytes, int type,
			  unsigned long long flags);
CUresult vmm_properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle);

CUresult device_attribute(int *ret, CUdevice_attribute attribute, CUdevice device);
CUresult multicast_create(CUmemGenericAllocationHandle *ret, const void *prop);

/* capture.c */
CUresult capture_begin_old(CUstream stream);
CUresult capture_begin_old_ptsz(CUstream stream);
CUresult capture_begin(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_begin_ptsz(CUstream stream, CUstreamCaptureMode mode);
CUresult capture_begin_to_graph(CUstream stream, CUgraph graph, const CUgraphNode *deps,
				const void *edges, size_t n_deps, CUstreamCaptureMode mode);
CUresult capture_begin_to_graph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps,
				     const void *edges, size_t n_deps, CUstreamCaptureMode mode);
CUresult capture_end(CUstream stream, CUgraph *graph);
CUresult capture_end_ptsz(CUstream stream, CUgraph *graph);
CUresult capture_stream_destroyed(CUstream stream);

/* peer.c */
CUresult peer_enable(CUcontext peer, unsigned int flags);
CUresult peer_disable(CUcontext peer);
CUresult copy_any(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult copy_any_ptds(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult copy_any_async(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult copy_any_async_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult copy_device(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult copy_device_ptds(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult copy_device_async(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult copy_device_async_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream);
CUresult copy_peer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes);
CUresult copy_peer_ptds(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
			size_t bytes);
CUresult copy_peer_async(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
			 size_t bytes, CUstream stream);
CUresult copy_peer_async_ptsz(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from,
			      size_t bytes, CUstream stream);
