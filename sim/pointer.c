// SPDX-License-Identifier: MIT
/* What the driver tells about a pointer. */
#include <string.h>

#include "sim.h"

static CUresult put(void *data, const void *value, size_t bytes)
{
	memcpy(data, value, bytes);
	return CUDA_SUCCESS;
}

#define PUT(type, value) put(data, &(type){ value }, sizeof(type))

/* Of reserved addresses, mapped or not: the attributes of the whole reservation. */
static CUresult attribute_of_reserved(CUpointer_attribute attribute, CUdeviceptr ptr, bool mapped,
				      void *data)
{
	CUdeviceptr base;
	size_t bytes;

	if (!vmm_reservation(ptr, &base, &bytes))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return PUT(CUdeviceptr, base);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return PUT(size_t, bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return PUT(unsigned int, mapped);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult attribute_of(const struct range *range, CUpointer_attribute attribute,
			     CUdeviceptr ptr, void *data)
{
	bool device = range->device >= 0 || range->kind == RANGE_MANAGED;

	if (range->kind == RANGE_VMM && !attribute_of_reserved(attribute, ptr, true, data))
		return CUDA_SUCCESS;
	switch (attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		return PUT(CUcontext, range->ctx);
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		return PUT(unsigned int, device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		return PUT(CUdeviceptr, ptr);
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (range->device >= 0)
			return CUDA_ERROR_INVALID_VALUE;
		return PUT(void *, (void *)(uintptr_t)ptr);
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		return PUT(unsigned int, range->sync_memops);
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		return PUT(uint64_t, range->id);
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		return PUT(unsigned int, range->kind == RANGE_MANAGED);
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		return PUT(int, range->device >= 0 ? range->device : range->ctx->device);
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		return PUT(unsigned int, range->kind == RANGE_DEVICE);
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		return PUT(CUdeviceptr, range->base);
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		return PUT(size_t, range->bytes);
	case CU_POINTER_ATTRIBUTE_MAPPED:
		return PUT(unsigned int, 1);
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		return PUT(uint64_t, range->kind == RANGE_VMM
					     ? range->view->phys->prop.requestedHandleTypes
					     : 0);
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		return PUT(CUmemoryPool, NULL);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult set_one(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct range *range = range_find(ptr);

	if (!value || !range || range->device < 0 || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&range->sync_memops, value, sizeof(range->sync_memops));
	return CUDA_SUCCESS;
}

static CUresult get_one(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	struct range *range = range_find(ptr);

	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	return range ? attribute_of(range, attribute, ptr, data)
		     : attribute_of_reserved(attribute, ptr, false, data);
}

/* Unlike the single query this one takes a pointer it does not know, and answers zeros. */
static CUresult get_many(unsigned int count, CUpointer_attribute *attributes, void **data,
			 CUdeviceptr ptr)
{
	if (!count || !attributes || !data)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned int i = 0; i < count; i++) {
		if (!get_one(data[i], attributes[i], ptr))
			continue;
		switch (attributes[i]) {
		case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
			*(int *)data[i] = -2;
			break;
		case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		case CU_POINTER_ATTRIBUTE_MAPPED:
			*(unsigned int *)data[i] = 0;
			break;
		default:
			*(uint64_t *)data[i] = 0;
		}
	}
	return CUDA_SUCCESS;
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	return API_LOCKED(get_one(data, attribute, ptr));
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
				CUdeviceptr ptr)
{
	return API_LOCKED(get_many(count, attributes, data, ptr));
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
	return API_LOCKED(set_one(value, attribute, ptr));
}
