// SPDX-License-Identifier: MIT
/*
 * Peer access between contexts, made of access to our memory instead of the driver's own: a process
 * that enabled that is lost when the driver restores it. Memory that the driver itself made (arrays,
 * globals of modules, pools) does not become reachable by it.
 */
#include <stdlib.h>

#include "base/cleanup.h"

#include "interpose/cuda/calls.h"
#include "interpose/core/memory.h"

static CUresult device_of(CUcontext handle, CUdevice *ret)
{
	if (!handle || driver.cuCtxPushCurrent_v2(handle))
		return CUDA_ERROR_INVALID_CONTEXT;

	CUresult r = driver.cuCtxGetDevice(ret);

	driver.cuCtxPopCurrent_v2(NULL);
	return r;
}

/* With the lock. */
static struct peer **find(CUcontext from, CUcontext to)
{
	struct peer **at = &memory.peers;

	while (*at && ((*at)->from != from || (*at)->to != to))
		at = &(*at)->next;
	return at;
}

static CUresult add(const struct context *from, CUcontext to)
{
	struct peer *peer = calloc(1, sizeof(*peer)), **at;
	CUresult r = CUDA_SUCCESS;

	if (!peer)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*peer = (struct peer){ .from = from->handle, .to = to, .from_device = from->device };
	memory_lock();
	at = find(from->handle, to);
	if (*at)
		r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
	else
		*at = take_ptr(&peer);
	memory_unlock();
	free(peer);
	return r;
}

/* Whether no other context of the device may reach @to. With the lock. */
static bool last_of_device(int device, CUcontext to)
{
	for (const struct peer *peer = memory.peers; peer; peer = peer->next)
		if (peer->from_device == device && peer->to == to)
			return false;
	return true;
}

static bool remove_peer(const struct context *from, CUcontext to, bool *ret_last)
{
	struct peer **at, *gone;

	memory_lock();
	at = find(from->handle, to);
	gone = *at;
	if (gone)
		*at = gone->next;
	*ret_last = last_of_device(from->device, to);
	memory_unlock();
	free(gone);
	return gone;
}

static bool emulated(const struct context *from, int to_device)
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
	/* What is wrong with it the driver says best, and then enables nothing. */
	if (!from || flags || device_of(to, &device) || device == from->device ||
	    driver.cuDeviceCanAccessPeer(&can, from->device, device) || !can ||
	    !emulated(from, device))
		return driver.cuCtxEnablePeerAccess(to, flags);
	context_note(to, false);
	r = add(from, to);
	if (r)
		return r;
	r = regions_grant(to, from->device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
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
	if (!from || device_of(to, &device) || device == from->device || !emulated(from, device))
		return driver.cuCtxDisablePeerAccess(to);
	context_synchronize(from->handle);
	if (!remove_peer(from, to, &last))
		return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
	return last ? regions_grant(to, from->device, CU_MEM_ACCESS_FLAGS_PROT_NONE) : CUDA_SUCCESS;
}
