// SPDX-License-Identifier: MIT
/*
 * The devices and contexts of the process, as far as memory and work are concerned. An allocation
 * belongs to the context that was current when it was made, and goes with it.
 */
#include <stdlib.h>
#include <string.h>

#include "interpose/cuda/gpudirect.h"
#include "interpose/core/memory.h"

static int attribute(CUdevice device, CUdevice_attribute which)
{
	int value = 0;

	return driver.cuDeviceGetAttribute(&value, which, device) ? 0 : value;
}

static void read_uuid(CUdevice ordinal, uint8_t ret[AGENT_UUID_BYTES])
{
	__typeof__(driver.cuDeviceGetUuid) *get =
		driver.cuDeviceGetUuid_v2 ? &driver.cuDeviceGetUuid_v2 : &driver.cuDeviceGetUuid;
	CUuuid uuid = { { 0 } };
	CUdevice device;

	if (*get && !driver.cuDeviceGet(&device, ordinal) && !(*get)(&uuid, device))
		memcpy(ret, uuid.bytes, AGENT_UUID_BYTES);
}

static bool can_manage(CUdevice device)
{
	return driver.cuMemCreate && driver.cuMemAddressReserve && driver.cuMemMap &&
	       driver.cuMemSetAccess && driver.cuMemExportToShareableHandle &&
	       driver.cuMemImportFromShareableHandle &&
	       attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
	       attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

CUmemAllocationProp piece_prop(const struct device *device, int ordinal)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, ordinal },
	};

	prop.allocFlags.gpuDirectRDMACapable = device->rdma;
	return prop;
}

/*
 * Access to a piece takes the driver 0.7 ms however large it is, from 256 MiB on (H200, 580.159.04): few
 * pieces are wanted. But to make one the process's own takes room for another. A slab is one piece.
 */
#define PIECE_MOST_BYTES (1ull << 30)
#define PIECE_PART	 64

static uint64_t largest_piece(uint64_t total_bytes)
{
	uint64_t part = total_bytes / PIECE_PART / SLAB_FIRST_BYTES * SLAB_FIRST_BYTES;

	if (part < SLAB_LAST_BYTES)
		return SLAB_LAST_BYTES;
	return part < PIECE_MOST_BYTES ? part : PIECE_MOST_BYTES;
}

static void learn_device(int ordinal, struct device *ret)
{
	CUmemAllocationProp prop;
	CUdevice device;
	size_t total = 0;

	*ret = (struct device){ .known = true };
	if (driver.cuDeviceGet(&device, ordinal) || driver.cuDeviceTotalMem_v2(&total, device))
		return;
	ret->total_bytes = total;
	read_uuid(ordinal, ret->uuid);
	ret->rdma =
		attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) &&
		gpudirect_possible_here();
	prop = piece_prop(ret, ordinal);
	ret->usable = can_manage(device) &&
		      !driver.cuMemGetAllocationGranularity(&ret->granule_bytes, &prop,
							    CU_MEM_ALLOC_GRANULARITY_MINIMUM) &&
		      ret->granule_bytes && SLAB_FIRST_BYTES % ret->granule_bytes == 0;
	ret->piece_max_bytes = largest_piece(total);
}

const struct device *device_get(int ordinal)
{
	struct device *slot, learnt;
	bool known;

	if (ordinal < 0 || ordinal >= DEVICES_MAX)
		return NULL;
	slot = &memory.devices[ordinal];
	memory_lock();
	known = slot->known;
	memory_unlock();
	if (known)
		return slot;
	learn_device(ordinal, &learnt);
	memory_lock();
	if (!slot->known)
		*slot = learnt;
	memory_unlock();
	return slot;
}

void devices_refresh(void)
{
	for (int i = 0; i < DEVICES_MAX; i++)
		if (memory.devices[i].known)
			read_uuid(i, memory.devices[i].uuid);
}

struct context *context_find(CUcontext handle)
{
	struct context *context = memory.contexts;

	while (context && context->handle != handle)
		context = context->next;
	return context;
}

static struct context *find_locked(CUcontext handle)
{
	struct context *context;

	memory_lock();
	context = context_find(handle);
	memory_unlock();
	return context;
}

static struct context *add(CUcontext handle, int device, bool green)
{
	struct context *fresh = calloc(1, sizeof(*fresh)), *context;

	if (!fresh)
		return NULL;
	fresh->handle = handle;
	fresh->device = device;
	fresh->green = green;
	fresh->next_slab_bytes = SLAB_FIRST_BYTES;
	memory_lock();
	context = context_find(handle);
	if (!context) {
		context = fresh;
		context->next = memory.contexts;
		memory.contexts = context;
		fresh = NULL;
	}
	memory_unlock();
	free(fresh);
	return context;
}

struct context *context_current(CUresult *ret_error)
{
	struct context *context;
	CUcontext handle = NULL;
	size_t free_bytes, total;
	CUdevice device;
	CUresult r = driver.cuCtxGetCurrent(&handle);

	*ret_error = r ? r : CUDA_ERROR_INVALID_CONTEXT;
	if (r || !handle)
		return NULL;
	context = find_locked(handle);
	if (context)
		return context;
	/* New to us. One that was destroyed can still be current: this call says so. */
	r = driver.cuMemGetInfo_v2(&free_bytes, &total);
	if (!r)
		r = driver.cuCtxGetDevice(&device);
	if (!r && !device_get(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	*ret_error = r ? r : CUDA_ERROR_OUT_OF_MEMORY;
	return r ? NULL : add(handle, device, false);
}

void context_note(CUcontext handle, bool green)
{
	CUdevice device;

	if (find_locked(handle) || driver.cuCtxPushCurrent_v2(handle))
		return;
	if (!driver.cuCtxGetDevice(&device) && device_get(device))
		add(handle, device, green);
	driver.cuCtxPopCurrent_v2(NULL);
}

static void drop_peers(CUcontext handle)
{
	for (struct peer **at = &memory.peers; *at;) {
		struct peer *peer = *at;

		if (peer->from != handle && peer->to != handle) {
			at = &peer->next;
			continue;
		}
		*at = peer->next;
		free(peer);
	}
}

/* Takes the record, and all blocks, out of the tables. */
static struct context *unlink_context(CUcontext handle)
{
	struct context **at = &memory.contexts, *context;
	struct block *block = NULL;

	while (*at && (*at)->handle != handle)
		at = &(*at)->next;
	context = *at;
	if (!context)
		return NULL;
	*at = context->next;
	drop_peers(handle);
	slab_forget(context);
	while ((block = tree_next(&memory.blocks, block))) {
		if (block->context != handle)
			continue;

		struct block *gone = block;

		block = tree_floor(&memory.blocks, gone->node.start - 1);
		tree_remove(&memory.blocks, &gone->node);
		free(gone);
	}
	return context;
}

static struct region *region_of(const struct context *context)
{
	struct region *region = NULL;

	while ((region = tree_next(&memory.regions, region)))
		if (region->context == context && !region->busy) {
			region->busy = true;
			return region;
		}
	return NULL;
}

void context_drop(CUcontext handle)
{
	struct context *context;
	struct region *region;

	memory_lock();
	context = unlink_context(handle);
	while (context && (region = region_of(context))) {
		memory_unlock();
		region_free(region);
		memory_lock();
	}
	memory_unlock();
	free(context);
}

static CUcontext known_of(int device)
{
	struct context *context;
	CUcontext handle;

	memory_lock();
	context = memory.contexts;
	while (context && context->device != device)
		context = context->next;
	handle = context ? context->handle : NULL;
	memory_unlock();
	return handle;
}

bool context_enter_known(int device)
{
	CUcontext handle = known_of(device);

	return handle && !driver.cuCtxPushCurrent_v2(handle);
}

CUresult context_enter(int device, CUcontext *ret_retained)
{
	CUresult r;

	*ret_retained = NULL;
	if (context_enter_known(device))
		return CUDA_SUCCESS;
	r = driver.cuDevicePrimaryCtxRetain(ret_retained, device);
	return r ? r : driver.cuCtxPushCurrent_v2(*ret_retained);
}

void context_leave(int device, CUcontext retained)
{
	driver.cuCtxPopCurrent_v2(NULL);
	if (retained)
		driver.cuDevicePrimaryCtxRelease_v2(device);
}

CUresult context_synchronize(CUcontext handle)
{
	CUcontext current = NULL;
	CUresult r;

	if (!driver.cuCtxGetCurrent(&current) && current == handle)
		return driver.cuCtxSynchronize();
	r = driver.cuCtxPushCurrent_v2(handle);
	if (r)
		return r;
	r = driver.cuCtxSynchronize();
	driver.cuCtxPopCurrent_v2(NULL);
	return r;
}
