// SPDX-License-Identifier: MIT
/*
 * What the driver tells about a pointer, told about ours as it would be had cuMemAlloc made them: not
 * of the slab or the pieces behind them.
 */
#include <string.h>

#include "interpose/cuda/calls.h"
#include "interpose/core/memory.h"

/* An address that no driver knows: asked instead of one in our memory that the program does not own. */
static const CUdeviceptr nowhere = 64;

enum place { PLACE_FOREIGN, PLACE_BLOCK, PLACE_NOBODYS, PLACE_PROGRAMS };

/* Of the program's own use of the virtual memory API @ret_types are the handle types it asked for. */
static enum place find(CUdeviceptr ptr, struct block *ret, uint64_t *ret_types)
{
	enum place place = PLACE_FOREIGN;
	struct piece *piece = NULL;
	struct block *block;

	memory_lock();
	block = tree_find(&memory.blocks, ptr);
	if (!block)
		block = tree_find(&memory.opened, ptr);
	if (block) {
		*ret = *block;
		place = PLACE_BLOCK;
	} else if (tree_find(&memory.regions, ptr) || tree_find(&memory.spares, ptr)) {
		place = PLACE_NOBODYS;
	} else if ((piece = piece_at(ptr))) {
		*ret_types = piece->asked.requestedHandleTypes;
		place = PLACE_PROGRAMS;
	}
	memory_unlock();
	return place;
}

CUresult pointer_range(CUdeviceptr *base, size_t *bytes, CUdeviceptr ptr)
{
	struct block block;
	uint64_t types;
	enum place place = find(ptr, &block, &types);

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
static int answer(const struct block *block, CUpointer_attribute attribute, CUdeviceptr ptr,
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
		return -CUDA_ERROR_INVALID_VALUE;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return PUT(unsigned int, block->sync_memops);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return PUT(uint64_t, block->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return PUT(unsigned int, 0);
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
	enum place place = find(ptr, &block, &types);
	CUresult result;
	int r = 0;

	if (place == PLACE_BLOCK && data)
		r = answer(&block, attribute, ptr, data);
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
	enum place place = find(ptr, &block, &types);
	CUresult r = driver.cuPointerGetAttributes(count, attributes, data,
						   place == PLACE_NOBODYS ? nowhere : ptr);

	if (r)
		return r;
	for (unsigned int i = 0; i < count; i++)
		if (place == PLACE_BLOCK)
			answer(&block, attributes[i], ptr, data[i]);
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
