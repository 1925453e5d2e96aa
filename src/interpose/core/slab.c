// SPDX-License-Identifier: MIT
/*
 * Small allocations: extents of large regions. The free extents of a context are ordered twice, by
 * address to merge neighbours and by size to find the smallest that fits. Pure bookkeeping, with the
 * tables' lock held by the caller.
 */
#include <stdlib.h>

#include "interpose/core/memory.h"

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

static uint64_t to_units(uint64_t bytes)
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

/* A program of many small blocks has few large slabs, which are moved in few steps, and no more than a
 * part of its memory in reserve. */
size_t slab_next_bytes(const struct context *context)
{
	size_t bytes = context->next_slab_bytes;

	while (bytes > SLAB_EVEN_BYTES && bytes > context->slab_bytes / SLAB_PART)
		bytes /= 2;
	return bytes;
}

bool slab_take(struct context *context, size_t bytes, CUdeviceptr *ret, struct region **ret_region)
{
	struct extent *extent;
	uint64_t take = to_units(bytes);

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
static uint64_t absorb(struct region *region, struct extent *extent)
{
	uint64_t bytes = extent->by_address.bytes;

	unlink_extent(region->context, extent);
	free(extent);
	return bytes;
}

/* Of a slab that goes. */
static void drop_extents(struct region *region)
{
	struct extent *extent = tree_ceil(&region->context->by_address, region->node.start);

	while (extent && extent->region == region) {
		absorb(region, extent);
		extent = tree_ceil(&region->context->by_address, region->node.start);
	}
	region->context->slab_bytes -= region->node.bytes;
}

bool slab_give(struct region *region, CUdeviceptr va, size_t bytes)
{
	struct context *context = region->context;
	uint64_t start = va, give = to_units(bytes), used = give;
	struct extent *before = tree_floor(&context->by_address, va), *after;

	after = tree_get(&context->by_address, va + give);
	if (before && before->region == region &&
	    before->by_address.start + before->by_address.bytes == va) {
		start = before->by_address.start;
		give += absorb(region, before);
	}
	if (after && after->region == region)
		give += absorb(region, after);
	region->used_bytes -= used;
	if (!region->used_bytes && context->empty_slabs) {
		drop_extents(region);
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
		drop_extents(region);
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
