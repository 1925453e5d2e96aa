// SPDX-License-Identifier: MIT
/*
 * Physical allocations and where they are mapped, kept in step with the driver. A piece lives while
 * it is mapped, the program has a handle of it or a call under way uses it; then it is released.
 */
#include <stdlib.h>
#include <string.h>

#include "interpose/core/memory.h"

struct piece *piece_adopt(CUmemGenericAllocationHandle handle, size_t bytes,
			  const CUmemAllocationProp *asked)
{
	struct piece *piece = calloc(1, sizeof(*piece));

	if (!piece)
		return NULL;
	piece->handle = handle;
	piece->bytes = bytes;
	piece->asked = *asked;
	piece->device = asked->location.id;
	piece->pins = 1;
	memory_lock();
	piece->node = (struct node){ .start = ++memory.last_id, .bytes = 1 };
	tree_add(&memory.pieces, &piece->node);
	memory.piece_bytes += bytes;
	memory_unlock();
	return piece;
}

CUresult piece_new(struct piece **ret, size_t bytes, const CUmemAllocationProp *asked)
{
	CUmemAllocationProp prop = *asked;
	CUmemGenericAllocationHandle handle;
	CUresult r;

	prop.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	r = driver.cuMemCreate(&handle, bytes, &prop, 0);
	if (r == CUDA_ERROR_OUT_OF_MEMORY && addresses_drop_memory())
		r = driver.cuMemCreate(&handle, bytes, &prop, 0);
	if (r)
		return r;
	*ret = piece_adopt(handle, bytes, asked);
	if (*ret)
		return CUDA_SUCCESS;
	driver.cuMemRelease(handle);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

/* With the lock, which it lets go. Releases the piece if nothing holds it. */
static void unlock_and_put(struct piece *piece)
{
	bool last = !piece->refs && !piece->pins && !piece->mappings;

	if (last) {
		tree_remove(&memory.pieces, &piece->node);
		memory.piece_bytes -= piece->bytes;
		if (piece->away)
			memory.away--;
	}
	memory_unlock();
	if (!last)
		return;
	if (piece->handle)
		driver.cuMemRelease(piece->handle);
	free(piece);
}

void piece_unref(struct piece *piece)
{
	memory_lock();
	piece->refs--;
	unlock_and_put(piece);
}

void piece_unpin(struct piece *piece)
{
	memory_lock();
	piece->pins--;
	unlock_and_put(piece);
}

struct piece *piece_at(CUdeviceptr va)
{
	struct mapping *mapping = tree_find(&memory.mappings, va);

	return mapping ? mapping->piece : NULL;
}

CUresult piece_map(struct piece *piece, CUdeviceptr va, size_t bytes, size_t offset)
{
	struct mapping *mapping = calloc(1, sizeof(*mapping));
	CUresult r;

	if (!mapping)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = driver.cuMemMap(va, bytes, offset, piece->handle, 0);
	if (r) {
		free(mapping);
		return r;
	}
	mapping->node = (struct node){ .start = va, .bytes = bytes };
	mapping->piece = piece;
	mapping->offset = offset;
	mapping->mapped = true;
	memory_lock();
	tree_add(&memory.mappings, &mapping->node);
	mapping->next = piece->mappings;
	piece->mappings = mapping;
	if (piece->bytes < offset + bytes) {
		memory.piece_bytes += offset + bytes - piece->bytes;
		piece->bytes = offset + bytes;
	}
	memory_unlock();
	return CUDA_SUCCESS;
}

/* With the lock: takes the mapping out of the tables; its piece stays, pinned. */
static struct piece *drop_mapping(struct mapping *mapping)
{
	struct piece *piece = mapping->piece;
	struct mapping **at = &piece->mappings;

	while (*at != mapping)
		at = &(*at)->next;
	*at = mapping->next;
	tree_remove(&memory.mappings, &mapping->node);
	free(mapping);
	piece->pins++;
	return piece;
}

CUresult range_unmap(CUdeviceptr va, size_t bytes)
{
	CUresult r = driver.cuMemUnmap(va, bytes);
	struct mapping *mapping;

	if (r)
		return r;
	for (CUdeviceptr end = va + bytes; va < end;) {
		memory_lock();
		mapping = tree_ceil(&memory.mappings, va);
		if (!mapping || mapping->node.start >= end) {
			memory_unlock();
			break;
		}
		va = mapping->node.start + mapping->node.bytes;

		struct piece *piece = drop_mapping(mapping);

		memory_unlock();
		piece_unpin(piece);
	}
	return CUDA_SUCCESS;
}

static void remember_access(struct mapping *mapping, const CUmemAccessDesc *desc, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
		    desc[i].location.id >= 0 && desc[i].location.id < DEVICES_MAX)
			mapping->access[desc[i].location.id] = (uint8_t)desc[i].flags;
}

CUresult range_access(CUdeviceptr va, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	CUresult r = driver.cuMemSetAccess(va, bytes, desc, count);
	struct mapping *mapping;

	if (r)
		return r;
	memory_lock();
	mapping = tree_floor(&memory.mappings, va);
	if (!mapping || va - mapping->node.start >= mapping->node.bytes)
		mapping = tree_ceil(&memory.mappings, va);
	while (mapping && mapping->node.start < va + bytes) {
		remember_access(mapping, desc, count);
		if (mapping->node.start + mapping->node.bytes >= va + bytes)
			break;
		mapping = tree_next(&memory.mappings, mapping);
	}
	memory_unlock();
	return CUDA_SUCCESS;
}
