// SPDX-License-Identifier: MIT
/*
 * Regions: addresses that we reserve and fill with pieces one after the other, for a large allocation or
 * for a slab of small ones. All of a region is accessible to its device and to enabled peers. A slab's
 * free extents are ordered twice, by address to merge neighbours and by size to find the smallest that
 * fits; that half is pure bookkeeping, with the tables' lock held by the caller.
 */
#include <errno.h>
#include <stdlib.h>

#include "interpose/core/backend.h"
#include "interpose/core/memory.h"

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static int map_pinned(struct piece *piece, uint64_t va, size_t bytes, size_t *ret_mapped)
{
	int r = piece_map(piece, va, bytes, 0);

	piece_unpin(piece);
	if (!r)
		*ret_mapped += bytes;
	return r;
}

static int fill_region(uint64_t va, size_t bytes, int ordinal, size_t *ret_mapped)
{
	struct device *device = &memory.devices[ordinal];
	int r = 0;

	while (*ret_mapped < bytes && !r) {
		size_t left = bytes - *ret_mapped;
		size_t n = left < device->piece_max_bytes ? left : device->piece_max_bytes;
		struct memory_kind kind = backend_kind(ordinal, device->rdma);
		struct piece *piece;

		r = piece_new(&piece, n, &kind);
		if (r && r != -ENOMEM && device->rdma) {
			memory_lock();
			device->rdma = false;
			memory_unlock();
			r = 0;
			continue;
		}
		if (r)
			break;
		r = map_pinned(piece, va + *ret_mapped, n, ret_mapped);
	}
	return r;
}

static int grant_region(const struct region *region)
{
	struct access desc[DEVICES_MAX];
	const struct context *context = region->context;
	uint64_t seen = 1ull << context->device;
	size_t n = 1;

	desc[0] = (struct access){ context->device, ACCESS_READ_WRITE };
	memory_lock();
	for (const struct peer_access *peer = memory.peers; peer; peer = peer->next) {
		if (peer->to != context->handle || seen & 1ull << peer->from_device)
			continue;
		seen |= 1ull << peer->from_device;
		desc[n++] = (struct access){ peer->from_device, ACCESS_READ_WRITE };
	}
	memory_unlock();
	return range_access(region->node.start, region->node.bytes, desc, n);
}

/* Unmaps all at once, or piece by piece where the driver wants it so. */
static int unmap_region(const struct region *region, size_t mapped)
{
	size_t piece = memory.devices[region->context->device].piece_max_bytes;
	uint64_t va = region->node.start;
	int r = 0;

	if (!mapped || !range_unmap(va, mapped))
		return 0;
	for (size_t at = 0; at < mapped; at += piece)
		if (range_unmap(va + at, mapped - at < piece ? mapped - at : piece))
			r = -EIO;
	return r;
}

/* Undoes the first @mapped bytes of a region. */
static void undo_region(struct region *region, size_t mapped)
{
	struct piece *kept = addresses_keep(region->node.start, region->node.bytes);
	int unmapped = unmap_region(region, mapped);

	addresses_release_with(region->node.start, region->node.bytes, unmapped, kept);
	free(region);
}

void region_free(struct region *region)
{
	memory_lock();
	tree_remove(&memory.regions, &region->node);
	memory_unlock();
	undo_region(region, region->node.bytes);
}

int region_new(struct region **ret, struct context *context, size_t bytes, bool slab)
{
	size_t room = round_up(bytes, memory.devices[context->device].granule_bytes), mapped = 0;
	struct region *region = calloc(1, sizeof(*region));
	struct piece *kept;
	uint64_t va;
	int r;

	if (!region || addresses_reserve_with(&va, &kept, room, context->device)) {
		free(region);
		return -ENOMEM;
	}
	region->node = (struct node){ .start = va, .bytes = room };
	region->context = context;
	region->slab = slab;
	r = kept ? map_pinned(kept, va, room, &mapped)
		 : fill_region(va, room, context->device, &mapped);
	if (r) {
		undo_region(region, mapped);
		return r;
	}
	/* It enters the table first: then either a peer that is enabled now finds it there, or we find the peer. */
	memory_lock();
	tree_add(&memory.regions, &region->node);
	if (!memory.first_device)
		memory.first_device = context->device + 1;
	else if (memory.first_device != context->device + 1)
		memory.several_devices = true;
	memory_unlock();
	r = grant_region(region);
	if (r) {
		region_free(region);
		return r;
	}
	*ret = region;
	return 0;
}

int regions_grant(void *to, int device, unsigned int flags)
{
	struct access desc = { device, flags };
	uint64_t start = 0;
	int r = 0;

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

/* ---- slabs ---- */

/* The key by size has room for both: sizes in units below 2^20, addresses below 2^53. */
enum { ADDRESS_BITS = 44 };

struct extent {
	struct node by_address;
	struct node by_size;
	struct region *region;
};

static struct extent *of_size_node(struct node *node)
{
	return node ? (struct extent *)((char *)node - offsetof(struct extent, by_size)) : NULL;
}

static uint64_t size_key(uint64_t bytes, uint64_t va)
{
	return bytes / SLAB_UNIT_BYTES << ADDRESS_BITS | va / SLAB_UNIT_BYTES;
}

static uint64_t round_to_units(uint64_t bytes)
{
	return (bytes + SLAB_UNIT_BYTES - 1) / SLAB_UNIT_BYTES * SLAB_UNIT_BYTES;
}

static void link_extent(struct context *context, struct extent *extent)
{
	uint64_t va = extent->by_address.start, bytes = extent->by_address.bytes;

	extent->by_size = (struct node){ .start = size_key(bytes, va), .bytes = 1 };
	tree_add(&context->by_address, &extent->by_address);
	tree_add(&context->by_size, &extent->by_size);
	context->free_bytes += bytes;
}

static void unlink_extent(struct context *context, struct extent *extent)
{
	tree_remove(&context->by_address, &extent->by_address);
	tree_remove(&context->by_size, &extent->by_size);
	context->free_bytes -= extent->by_address.bytes;
}

/* Without memory for the record the room is lost until its slab goes. */
static struct extent *add_extent(struct region *region, uint64_t va, uint64_t bytes)
{
	struct extent *extent = calloc(1, sizeof(*extent));

	if (!extent)
		return NULL;
	extent->region = region;
	extent->by_address = (struct node){ .start = va, .bytes = bytes };
	link_extent(region->context, extent);
	return extent;
}

void slab_add(struct region *region)
{
	struct context *context = region->context;

	context->slab_bytes += region->node.bytes;
	if (context->next_slab_bytes < SLAB_LAST_BYTES)
		context->next_slab_bytes *= 2;
	if (add_extent(region, region->node.start, region->node.bytes))
		context->empty_slabs++;
}

/* A program with many small blocks gets few large slabs, which are moved in few steps, and keeps no more than a
 * part of its memory in reserve. */
size_t slab_next_bytes(const struct context *context)
{
	size_t bytes = context->next_slab_bytes;

	while (bytes > SLAB_EVEN_BYTES && bytes > context->slab_bytes / SLAB_PART)
		bytes /= 2;
	return bytes;
}

bool slab_take(struct context *context, size_t bytes, uint64_t *ret, struct region **ret_region)
{
	struct extent *extent;
	uint64_t take = round_to_units(bytes);

	extent = of_size_node(tree_ceil(&context->by_size, size_key(take, 0)));
	if (!extent)
		return false;
	unlink_extent(context, extent);
	*ret = extent->by_address.start;
	*ret_region = extent->region;
	if (!extent->region->used_bytes && context->empty_slabs)
		context->empty_slabs--;
	extent->region->used_bytes += take;
	extent->by_address.start += take;
	extent->by_address.bytes -= take;
	if (extent->by_address.bytes)
		link_extent(context, extent);
	else
		free(extent);
	return true;
}

/* Takes the free extent that ends at, or starts at, @va out and returns its bytes. */
static uint64_t absorb_extent(struct region *region, struct extent *extent)
{
	uint64_t bytes = extent->by_address.bytes;

	unlink_extent(region->context, extent);
	free(extent);
	return bytes;
}

/* Removes the free extents of a slab that goes. */
static void drop_slab(struct region *region)
{
	struct extent *extent = tree_ceil(&region->context->by_address, region->node.start);

	while (extent && extent->region == region) {
		absorb_extent(region, extent);
		extent = tree_ceil(&region->context->by_address, region->node.start);
	}
	region->context->slab_bytes -= region->node.bytes;
}

bool slab_give(struct region *region, uint64_t va, size_t bytes)
{
	struct context *context = region->context;
	uint64_t start = va, give = round_to_units(bytes), used = give;
	struct extent *before = tree_floor(&context->by_address, va), *after;

	after = tree_get(&context->by_address, va + give);
	if (before && before->region == region &&
	    before->by_address.start + before->by_address.bytes == va) {
		start = before->by_address.start;
		give += absorb_extent(region, before);
	}
	if (after && after->region == region)
		give += absorb_extent(region, after);
	region->used_bytes -= used;
	if (!region->used_bytes && context->empty_slabs) {
		drop_slab(region);
		region->busy = true;
		return true;
	}
	if (add_extent(region, start, give) && !region->used_bytes)
		context->empty_slabs++;
	return false;
}

struct region *slab_spare(struct context *context)
{
	struct extent *extent = NULL;

	while ((extent = tree_next(&context->by_address, extent))) {
		struct region *region = extent->region;

		if (region->used_bytes || region->busy)
			continue;
		drop_slab(region);
		context->empty_slabs--;
		region->busy = true;
		return region;
	}
	return NULL;
}

void slab_forget(struct context *context)
{
	struct extent *extent;

	while ((extent = tree_next(&context->by_address, NULL))) {
		unlink_extent(context, extent);
		free(extent);
	}
}
