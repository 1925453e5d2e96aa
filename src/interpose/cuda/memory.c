// SPDX-License-Identifier: MIT
/*
 * cuMemAlloc and its kin as the program knows them: what the driver does and tells of such memory, with
 * memory in pieces. What cannot be made in pieces is left to the driver and counted.
 */
#include <errno.h>
#include <string.h>

#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"

/* Counts what the driver allocated, or is about to free, at @ptr. */
static void count_driver(CUdeviceptr ptr, bool added)
{
	size_t bytes = 0;

	if (!driver.cuMemGetAddressRange_v2(NULL, &bytes, ptr))
		memory_count_driver(bytes, added);
}

CUresult memory_alloc(CUdeviceptr *ret, size_t bytes)
{
	struct context *context;
	uint64_t va;
	CUresult r;
	int made;

	if (!memory_managed())
		return driver.cuMemAlloc_v2(ret, bytes);
	context = context_current(&r);
	if (!context)
		return r;
	if (!ret || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	made = block_alloc(context, &va, bytes);
	if (!made)
		*ret = va;
	if (!made || made == -ENOMEM)
		return to_driver(made);
	r = driver.cuMemAlloc_v2(ret, bytes);
	if (!r)
		count_driver(*ret, true);
	return r;
}

/* Memory that moves by itself stays the driver's, unless the user would rather have it saved. */
CUresult memory_alloc_managed(CUdeviceptr *ret, size_t bytes, unsigned int flags)
{
	CUresult r = managed_alloc(ret, bytes, flags);

	if (r != CUDA_ERROR_NOT_SUPPORTED)
		return r;
	r = driver.cuMemAllocManaged(ret, bytes, flags);
	if (!r)
		count_driver(*ret, true);
	return r;
}

/* The attribute that says how rows are aligned for textures is smaller on every GPU there is. */
enum { PITCH_BYTES = 512 };

CUresult memory_alloc_pitch(CUdeviceptr *ret, size_t *ret_pitch, size_t width, size_t height,
			    unsigned int element)
{
	size_t pitch = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES, bytes;
	struct context *context;
	CUresult r;

	if (!memory_managed())
		return driver.cuMemAllocPitch_v2(ret, ret_pitch, width, height, element);
	context = context_current(&r);
	if (!context)
		return r;
	if (!ret || !ret_pitch || !width || !height ||
	    (element != 4 && element != 8 && element != 16) || pitch < width ||
	    __builtin_mul_overflow(pitch, height, &bytes))
		return driver.cuMemAllocPitch_v2(ret, ret_pitch, width, height, element);
	r = memory_alloc(ret, bytes);
	if (!r)
		*ret_pitch = pitch;
	return r;
}

CUresult memory_free(CUdeviceptr ptr)
{
	void *owner;
	CUresult r;
	bool ours;

	if (!memory_managed())
		return driver.cuMemFree_v2(ptr);
	if (managed_free(ptr, &r))
		return r;
	if (!block_starts(ptr, &owner, &ours)) {
		if (!ours && ptr && memory.driver_bytes)
			count_driver(ptr, false);
		if (!ours)
			return driver.cuMemFree_v2(ptr);
		return context_current(&r) ? CUDA_ERROR_INVALID_VALUE : r;
	}
	return context_current(&r) ? to_driver(block_free(ptr, owner)) : r;
}

CUresult memory_info(size_t *free_bytes, size_t *total_bytes)
{
	CUresult r = driver.cuMemGetInfo_v2(free_bytes, total_bytes), ignored;
	const struct context *context = r || !memory_managed() ? NULL : context_current(&ignored);

	if (context)
		*free_bytes += memory_free_bytes(context->device);
	if (!r)
		parked_note_memory(*free_bytes, *total_bytes);
	return r;
}

/* ---- what the driver tells about a pointer: not of the slab or the pieces behind it ---- */

/* An address that no driver knows: asked instead of one in our memory that the program does not own. */
static const CUdeviceptr nowhere = 64;

enum place { PLACE_FOREIGN, PLACE_BLOCK, PLACE_NOBODYS, PLACE_PROGRAMS };

/* For memory that the program made by the virtual memory API, @ret_types are the handle types it asked for. */
static enum place find_place(CUdeviceptr ptr, struct block *ret, uint64_t *ret_types)
{
	enum place place = PLACE_FOREIGN;
	struct piece *piece = NULL;
	struct block *block;

	memory_lock();
	block = tree_find(&memory.blocks, ptr);
	if (!block)
		block = tree_find(&memory.opened, ptr);
	if (!block)
		block = tree_find(&memory.managed, ptr);
	if (block) {
		*ret = *block;
		place = PLACE_BLOCK;
	} else if (tree_find(&memory.regions, ptr) || tree_find(&memory.spares, ptr)) {
		place = PLACE_NOBODYS;
	} else if ((piece = piece_at(ptr))) {
		*ret_types = prop_of(&piece->kind).requestedHandleTypes;
		place = PLACE_PROGRAMS;
	}
	memory_unlock();
	return place;
}

CUresult pointer_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr)
{
	struct block block;
	uint64_t types;
	enum place place = find_place(ptr, &block, &types);

	if (place != PLACE_BLOCK)
		return driver.cuMemGetAddressRange_v2(base, bytes,
						      place == PLACE_NOBODYS ? nowhere : ptr);
	if (base)
		*base = block.node.start;
	if (bytes)
		*bytes = block.node.bytes;
	return CUDA_SUCCESS;
}

/* 1: answered; 0: ask the driver; <0: what the driver would answer, negated. */
static int answer_query(const struct block *block, CUpointer_attribute attribute, CUdeviceptr ptr,
			void *data)
{
#define PUT(type, value) (memcpy(data, &(type){ value }, sizeof(type)), 1)
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return PUT(CUcontext, block->context);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return PUT(unsigned int, CU_MEMORYTYPE_DEVICE);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return PUT(CUdeviceptr, ptr);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (block->on_host)
			return PUT(void *, (void *)(uintptr_t)ptr);
		return -CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return PUT(unsigned int, block->sync_memops);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return PUT(uint64_t, block->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return PUT(unsigned int, block->on_host);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return PUT(int, block->device);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return PUT(unsigned int, block->region != NULL);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return PUT(CUdeviceptr, block->node.start);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return PUT(size_t, block->node.bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return PUT(unsigned int, 1);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return PUT(uint64_t, 0);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return PUT(CUmemoryPool, NULL);
	default:
		return 0;
	}
#undef PUT
}

CUresult pointer_get(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct block block;
	uint64_t types;
	enum place place = find_place(ptr, &block, &types);
	CUresult result;
	int r = 0;

	if (place == PLACE_BLOCK && data)
		r = answer_query(&block, attribute, ptr, data);
	if (r)
		return r < 0 ? (CUresult)-r : CUDA_SUCCESS;
	result = driver.cuPointerGetAttribute(data, attribute,
					      place == PLACE_NOBODYS ? nowhere : ptr);
	if (!result && place == PLACE_PROGRAMS &&
	    attribute == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
		memcpy(data, &types, sizeof(types));
	return result;
}

CUresult pointer_get_many(unsigned int count, CUpointer_attribute *attributes, void **data,
			  CUdeviceptr ptr)
{
	struct block block;
	uint64_t types;
	enum place place = find_place(ptr, &block, &types);
	CUresult r = driver.cuPointerGetAttributes(count, attributes, data,
						   place == PLACE_NOBODYS ? nowhere : ptr);

	if (r)
		return r;
	for (unsigned int i = 0; i < count; i++)
		if (place == PLACE_BLOCK)
			answer_query(&block, attributes[i], ptr, data[i]);
		else if (place == PLACE_PROGRAMS &&
			 attributes[i] == CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)
			memcpy(data[i], &types, sizeof(types));
	return CUDA_SUCCESS;
}

CUresult pointer_set(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct block *block;
	unsigned int wanted = 0;
	bool ours;

	if (value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		memcpy(&wanted, value, sizeof(wanted));
	memory_lock();
	block = tree_find(&memory.blocks, ptr);
	if (!block)
		block = tree_find(&memory.managed, ptr);
	ours = block && value && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
	if (ours)
		block->sync_memops = !!wanted;
	memory_unlock();
	if (!ours)
		return driver.cuPointerSetAttribute(value, attribute, ptr);
	/* The memory may be of a kind that has no such property; then all there is is the record. */
	driver.cuPointerSetAttribute(value, attribute, ptr);
	return CUDA_SUCCESS;
}
