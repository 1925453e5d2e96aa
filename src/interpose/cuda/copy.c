// SPDX-License-Identifier: MIT
/*
 * Copies between memory of two GPUs without peer access. Memory by cuMemAlloc the driver copies by
 * itself then; of memory of the virtual memory API, which ours is, it has to be told the contexts. In a
 * program with memory on one GPU these are one look at a flag.
 */
#include <stdatomic.h>

#include "interpose/cuda/calls.h"
#include "interpose/core/memory.h"

struct end {
	CUcontext context;
	int device;
	bool ours;
};

static bool is_device_memory(CUdeviceptr ptr)
{
	unsigned int type = 0;

	return !driver.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) &&
	       type == CU_MEMORYTYPE_DEVICE;
}

static bool find(CUdeviceptr ptr, struct end *ret)
{
	struct block *block;

	memory_lock();
	block = tree_find(&memory.blocks, ptr);
	*ret = (struct end){ .ours = block };
	if (block) {
		ret->context = block->context;
		ret->device = block->device;
	}
	memory_unlock();
	return ret->ours ||
	       (!driver.cuPointerGetAttribute(&ret->context, CU_POINTER_ATTRIBUTE_CONTEXT, ptr) &&
		!driver.cuPointerGetAttribute(&ret->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
					      ptr) &&
		ret->context && is_device_memory(ptr));
}

static bool several_devices(void)
{
	return atomic_load_explicit(&memory.several_devices, memory_order_relaxed);
}

/* Whether the GPU of the current context may touch both, because it enabled peer access. */
static bool reaches_both(CUdeviceptr dst, CUdeviceptr src)
{
	const struct mapping *to, *from;
	CUdevice device;
	bool both;

	if (driver.cuCtxGetDevice(&device) || device < 0 || device >= DEVICES_MAX)
		return false;
	memory_lock();
	to = tree_find(&memory.mappings, dst);
	from = tree_find(&memory.mappings, src);
	both = to && from && to->access[device] && from->access[device];
	memory_unlock();
	return both;
}

/* Whether the copy is between GPUs that do not reach each other, with some of our memory in it. */
static bool crosses(CUdeviceptr dst, CUdeviceptr src, struct end *to, struct end *from)
{
	return several_devices() && find(dst, to) && find(src, from) && (to->ours || from->ours) &&
	       to->device != from->device && !reaches_both(dst, src);
}

#define COPY(name, direct, across)                                               \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes)            \
	{                                                                        \
		struct end to, from;                                             \
                                                                                 \
		if (!crosses(dst, src, &to, &from))                              \
			return driver.direct(dst, src, bytes);                   \
		return driver.across(dst, to.context, src, from.context, bytes); \
	}
#define COPY_ASYNC(name, direct, across)                                                 \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)   \
	{                                                                                \
		struct end to, from;                                                     \
                                                                                         \
		if (!crosses(dst, src, &to, &from))                                      \
			return driver.direct(dst, src, bytes, stream);                   \
		return driver.across(dst, to.context, src, from.context, bytes, stream); \
	}
/* The other way round: the driver knows of no peer access, and would copy by way of the host. */
#define COPY_PEER(name, direct, across)                                               \
	CUresult name(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, \
		      size_t bytes)                                                   \
	{                                                                             \
		if (several_devices() && reaches_both(dst, src))                      \
			return driver.direct(dst, src, bytes);                        \
		return driver.across(dst, to, src, from, bytes);                      \
	}
#define COPY_PEER_ASYNC(name, direct, across)                                         \
	CUresult name(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, \
		      size_t bytes, CUstream stream)                                  \
	{                                                                             \
		if (several_devices() && reaches_both(dst, src))                      \
			return driver.direct(dst, src, bytes, stream);                \
		return driver.across(dst, to, src, from, bytes, stream);              \
	}

COPY(copy_any, cuMemcpy, cuMemcpyPeer)
COPY(copy_any_ptds, cuMemcpy_ptds, cuMemcpyPeer_ptds)
COPY(copy_device, cuMemcpyDtoD_v2, cuMemcpyPeer)
COPY(copy_device_ptds, cuMemcpyDtoD_v2_ptds, cuMemcpyPeer_ptds)
COPY_ASYNC(copy_any_async, cuMemcpyAsync, cuMemcpyPeerAsync)
COPY_ASYNC(copy_any_async_ptsz, cuMemcpyAsync_ptsz, cuMemcpyPeerAsync_ptsz)
COPY_ASYNC(copy_device_async, cuMemcpyDtoDAsync_v2, cuMemcpyPeerAsync)
COPY_ASYNC(copy_device_async_ptsz, cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyPeerAsync_ptsz)
COPY_PEER(copy_peer, cuMemcpyDtoD_v2, cuMemcpyPeer)
COPY_PEER(copy_peer_ptds, cuMemcpyDtoD_v2_ptds, cuMemcpyPeer_ptds)
COPY_PEER_ASYNC(copy_peer_async, cuMemcpyDtoDAsync_v2, cuMemcpyPeerAsync)
COPY_PEER_ASYNC(copy_peer_async_ptsz, cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyPeerAsync_ptsz)
