// SPDX-License-Identifier: MIT
/* The wrappers of memory calls. Each is what the driver's function of its kind is to a program. */
#pragma once

#include <stdbool.h>

#include "gpu/cuda/abi.h"

/* memory.c */
CUresult memory_alloc(CUdeviceptr *ret, size_t bytes);
CUresult memory_alloc_pitch(CUdeviceptr *ret, size_t *ret_pitch, size_t width, size_t height,
			    unsigned int element);
CUresult memory_alloc_managed(CUdeviceptr *ret, size_t bytes, unsigned int flags);
CUresult memory_free(CUdeviceptr ptr);
CUresult memory_info(size_t *free_bytes, size_t *total_bytes);
/** Counts what the driver allocated, or is about to free, at @ptr. */
void memory_count_driver(CUdeviceptr ptr, bool added);
/** Forgets what waits to be freed in a context that is gone. */
void memory_drop_deferred(CUcontext context);

/* pointer.c */
CUresult pointer_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr);
CUresult pointer_get(void *data, CUpointer_attribute attribute, CUdeviceptr ptr);
CUresult pointer_get_many(unsigned int count, CUpointer_attribute *attributes, void **data,
			  CUdeviceptr ptr);
CUresult pointer_set(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr);

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

/* ipc.c */
CUresult ipc_get(CUipcMemHandle *ret, CUdeviceptr ptr);
CUresult ipc_open(CUdeviceptr *ret, CUipcMemHandle handle, unsigned int flags);
CUresult ipc_close(CUdeviceptr ptr);
/** Closes all that was opened in a context that is gone. */
void ipc_drop(CUcontext context);

/* peer.c */
CUresult peer_enable(CUcontext peer, unsigned int flags);
CUresult peer_disable(CUcontext peer);

/* copy.c; the driver has the _ptds and _ptsz ones for programs whose default stream is one of each
 * thread */
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
