// SPDX-License-Identifier: MIT
/*
 * Several GPUs. Peer access between contexts is made of access to our memory instead of the driver's own: a
 * process that enabled that is lost when the driver restores it. Memory that the driver itself made (arrays,
 * globals of modules, pools) does not become reachable by it.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"

static CUresult context_device(CUcontext handle, CUdevice *ret)
{
	if (!handle || driver.cuCtxPushCurrent_v2(handle))
		return CUDA_ERROR_INVALID_CONTEXT;

	CUresult r = driver.cuCtxGetDevice(ret);

	driver.cuCtxPopCurrent_v2(NULL);
	return r;
}

/* With the lock. */
static struct peer_access **find_peer(CUcontext from, CUcontext to)
{
	struct peer_access **at = &memory.peers;

	while (*at && ((*at)->from != from || (*at)->to != to))
		at = &(*at)->next;
	return at;
}

static CUresult add_peer(const struct context *from, CUcontext to)
{
	struct peer_access *peer = calloc(1, sizeof(*peer)), **at;
	CUresult r = CUDA_SUCCESS;

	if (!peer)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*peer = (struct peer_access){ .from = from->handle, .to = to, .from_device = from->device };
	memory_lock();
	at = find_peer(from->handle, to);
	if (*at)
		r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	else
		*at = take_ptr(&peer);
	memory_unlock();
	free(peer);
	return r;
}

/* Whether no other context of the device may reach @to. With the lock. */
static bool is_last_of_device(int device, CUcontext to)
{
	for (const struct peer_access *peer = memory.peers; peer; peer = peer->next)
		if (peer->from_device == device && peer->to == to)
			return false;
	return true;
}

static bool remove_peer(const struct context *from, CUcontext to, bool *ret_last)
{
	struct peer_access **at, *gone;

	memory_lock();
	at = find_peer(from->handle, to);
	gone = *at;
	if (gone)
		*at = gone->next;
	*ret_last = is_last_of_device(from->device, to);
	memory_unlock();
	free(gone);
	return gone;
}

static bool is_emulated(const struct context *from, int to_device)
{
	const struct device *to = device_get(to_device);

	return memory.devices[from->device].usable && to && to->usable;
}

CUresult peer_enable(CUcontext to, unsigned int flags)
{
	struct context *from;
	CUdevice device;
	int can = 0;
	bool last;
	CUresult r;

	from = memory_managed() ? context_current(&r) : NULL;
	/* Where something is wrong the driver says best what, and then enables nothing. */
	if (!from || flags || context_device(to, &device) || device == from->device ||
	    driver.cuDeviceCanAccessPeer(&can, from->device, device) || !can ||
	    !is_emulated(from, device)) {
		r = driver.cuCtxEnablePeerAccess(to, flags);
		if (!r)
			memory_note_peers();
		return r;
	}
	context_note(to, false);
	r = add_peer(from, to);
	if (r)
		return r;
	r = to_driver(regions_grant(to, from->device, ACCESS_READ_WRITE));
	if (r)
		remove_peer(from, to, &last);
	return r;
}

CUresult peer_disable(CUcontext to)
{
	struct context *from;
	CUdevice device;
	bool last;
	CUresult r;

	from = memory_managed() ? context_current(&r) : NULL;
	if (!from || context_device(to, &device) || device == from->device ||
	    !is_emulated(from, device))
		return driver.cuCtxDisablePeerAccess(to);
	if (capture_forbid()) {
		backend_wait(from->handle);
		capture_permit();
	}
	if (!remove_peer(from, to, &last))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	return last ? to_driver(regions_grant(to, from->device, ACCESS_NONE)) : CUDA_SUCCESS;
}

/*
 * ---- copies between memory of two GPUs without peer access ----
 *
 * Memory by cuMemAlloc the driver copies by itself then; of memory of the virtual memory API, which ours is, it needs
 * the contexts. In a program with memory on one GPU these are one look at a flag.
 */

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

static bool find_end(CUdeviceptr ptr, struct end *ret)
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
static bool copy_crosses(CUdeviceptr dst, CUdeviceptr src, struct end *to, struct end *from)
{
	return several_devices() && find_end(dst, to) && find_end(src, from) &&
	       (to->ours || from->ours) && to->device != from->device && !reaches_both(dst, src);
}

#define COPY(name, direct, across)                                               \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes)            \
	{                                                                        \
		struct end to, from;                                             \
                                                                                 \
		if (!copy_crosses(dst, src, &to, &from))                         \
			return driver.direct(dst, src, bytes);                   \
		return driver.across(dst, to.context, src, from.context, bytes); \
	}
#define COPY_ASYNC(name, direct, across)                                                 \
	CUresult name(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream)   \
	{                                                                                \
		struct end to, from;                                                     \
                                                                                         \
		if (!copy_crosses(dst, src, &to, &from))                                 \
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
