// SPDX-License-Identifier: MIT
/*
 * Regions: addresses we reserve and fill with pieces one after the other, for a large allocation or
 * for a slab of small ones. All of a region is accessible to its device and to enabled peers.
 */
#include <stdlib.h>

#include "interpose/core/memory.h"

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static CUresult map_at(struct piece *piece, CUdeviceptr va, size_t bytes, size_t *ret_mapped)
{
	CUresult r = piece_map(piece, va, bytes, 0);

	piece_unpin(piece);
	if (!r)
		*ret_mapped += bytes;
	return r;
}

static CUresult fill(CUdeviceptr va, size_t bytes, int ordinal, size_t *ret_mapped)
{
	struct device *device = &memory.devices[ordinal];
	CUresult r = CUDA_SUCCESS;

	while (*ret_mapped < bytes && !r) {
		size_t left = bytes - *ret_mapped;
		size_t n = left < device->piece_max_bytes ? left : device->piece_max_bytes;
		CUmemAllocationProp prop = piece_prop(device, ordinal);
		struct piece *piece;

		r = piece_new(&piece, n, &prop);
		if (r && r != CUDA_ERROR_OUT_OF_MEMORY && device->rdma) {
			memory_lock();
			device->rdma = false;
			memory_unlock();
			r = CUDA_SUCCESS;
			continue;
		}
		if (r)
			break;
		r = map_at(piece, va + *ret_mapped, n, ret_mapped);
	}
	return r;
}

static CUresult grant(const struct region *region)
{
	CUmemAccessDesc desc[DEVICES_MAX];
	const struct context *context = region->context;
	uint64_t seen = 1ull << context->device;
	size_t n = 1;

	desc[0] = (CUmemAccessDesc){ { CU_MEM_LOCATION_TYPE_DEVICE, context->device },
				     CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	memory_lock();
	for (const struct peer *peer = memory.peers; peer; peer = peer->next) {
		if (peer->to != context->handle || seen & 1ull << peer->from_device)
			continue;
		seen |= 1ull << peer->from_device;
		desc[n++] = (CUmemAccessDesc){ { CU_MEM_LOCATION_TYPE_DEVICE, peer->from_device },
					       CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	}
	memory_unlock();
	return range_access(region->node.start, region->node.bytes, desc, n);
}

/* At once, or piece by piece where the driver wants it so. */
static CUresult unmap(const struct region *region, size_t mapped)
{
	size_t piece = memory.devices[region->context->device].piece_max_bytes;
	CUdeviceptr va = region->node.start;
	CUresult r = CUDA_SUCCESS;

	if (!mapped || !range_unmap(va, mapped))
		return CUDA_SUCCESS;
	for (size_t at = 0; at < mapped; at += piece)
		if (range_unmap(va + at, mapped - at < piece ? mapped - at : piece))
			r = CUDA_ERROR_UNKNOWN;
	return r;
}

/* Undoes as much as was done. */
static void undo(struct region *region, size_t mapped)
{
	struct piece *kept = addresses_keep(region->node.start, region->node.bytes);
	CUresult unmapped = unmap(region, mapped);

	addresses_release_with(region->node.start, region->node.bytes, unmapped, kept);
	free(region);
}

void region_free(struct region *region)
{
	memory_lock();
	tree_remove(&memory.regions, &region->node);
	memory_unlock();
	undo(region, region->node.bytes);
}

CUresult region_new(struct region **ret, struct context *context, size_t bytes, bool slab)
{
	size_t room = round_up(bytes, memory.devices[context->device].granule_bytes), mapped = 0;
	struct region *region = calloc(1, sizeof(*region));
	struct piece *kept;
	CUdeviceptr va;
	CUresult r;

	if (!region || addresses_reserve_with(&va, &kept, room, context->device)) {
		free(region);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	region->node = (struct node){ .start = va, .bytes = room };
	region->context = context;
	region->slab = slab;
	r = kept ? map_at(kept, va, room, &mapped) : fill(va, room, context->device, &mapped);
	if (r) {
		undo(region, mapped);
		return r;
	}
	/* In the table first: a peer that is enabled now finds it there, or we find the peer. */
	memory_lock();
	tree_add(&memory.regions, &region->node);
	if (!memory.first_device)
		memory.first_device = context->device + 1;
	else if (memory.first_device != context->device + 1)
		memory.several_devices = true;
	memory_unlock();
	r = grant(region);
	if (r) {
		region_free(region);
		return r;
	}
	*ret = region;
	return CUDA_SUCCESS;
}

CUresult regions_grant(CUcontext to, int device, CUmemAccess_flags flags)
{
	CUmemAccessDesc desc = { { CU_MEM_LOCATION_TYPE_DEVICE, device }, flags };
	uint64_t start = 0;
	CUresult r = CUDA_SUCCESS;

	while (!r) {
		struct region *region;
		uint64_t bytes;

		memory_lock();
		region = tree_ceil(&memory.regions, start);
		while (region && (region->busy || region->context->handle != to))
			region = tree_next(&memory.regions, region);
		start = region ? region->node.start : 0;
		bytes = region ? region->node.bytes : 0;
		memory_unlock();
		if (!region)
			break;
		r = range_access(start, bytes, &desc, 1);
		start += bytes;
	}
	return r;
}
