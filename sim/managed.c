// SPDX-License-Identifier: MIT
/*
 * What a program says of managed memory: where it is wanted, and whose it is. Here it is in one place, so all of
 * that is only remembered. H200: of memory that is not managed, registered host memory too, each of these calls
 * returns 1.
 */
#include <stdlib.h>

#include "sim.h"

enum { NOWHERE = -2 };

struct advice {
	int read_mostly;
	CUmemLocation preferred, prefetched;
	uint64_t accessed_by; /* bit per device, and the last for the host */
};

enum { HOST_BIT = 63 };

static struct range *managed_range(CUdeviceptr ptr, size_t bytes)
{
	struct range *range = range_find(ptr);

	if (!range || range->kind != RANGE_MANAGED || !bytes ||
	    bytes > range->base + range->bytes - ptr)
		return NULL;
	if (!range->advice) {
		range->advice = calloc(1, sizeof(*range->advice));
		if (range->advice)
			range->advice->preferred.id = range->advice->prefetched.id = NOWHERE;
	}
	return range->advice ? range : NULL;
}

static bool valid_location(CUmemLocation at)
{
	return at.type == CU_MEM_LOCATION_TYPE_DEVICE ? device_valid(at.id)
						      : at.type == CU_MEM_LOCATION_TYPE_HOST;
}

static CUmemLocation location_of(CUdevice device)
{
	return (CUmemLocation){ device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST
							: CU_MEM_LOCATION_TYPE_DEVICE,
				device };
}

static CUresult advise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUmemLocation at)
{
	struct range *range = managed_range(ptr, bytes);
	uint64_t bit =
		1ull << (at.type == CU_MEM_LOCATION_TYPE_DEVICE ? at.id & HOST_BIT : HOST_BIT);

	if (!range)
		return CUDA_ERROR_INVALID_VALUE;
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		range->advice->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		range->advice->preferred = (CUmemLocation){ CU_MEM_LOCATION_TYPE_INVALID, NOWHERE };
		return CUDA_SUCCESS;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	if (!valid_location(at))
		return CUDA_ERROR_INVALID_DEVICE;
	if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
		range->advice->preferred = at;
	else if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY)
		range->advice->accessed_by |= bit;
	else
		range->advice->accessed_by &= ~bit;
	return CUDA_SUCCESS;
}

static CUresult prefetch(CUcontext ctx, CUdeviceptr ptr, size_t bytes, CUmemLocation at,
			 CUstream handle)
{
	struct range *range = managed_range(ptr, bytes);
	CUstream stream;

	if (!range)
		return CUDA_ERROR_INVALID_VALUE;
	if (!valid_location(at))
		return CUDA_ERROR_INVALID_DEVICE;
	range->advice->prefetched = at;
	return stream_resolve(ctx, handle, &stream);
}

static int number_of(CUmemLocation at)
{
	return at.type == CU_MEM_LOCATION_TYPE_HOST ? CU_DEVICE_CPU : at.id;
}

static CUresult tell_accessed_by(const struct advice *advice, int *ret, size_t n)
{
	size_t at = 0;

	for (int i = 0; i <= HOST_BIT && at < n; i++)
		if (advice->accessed_by >> i & 1)
			ret[at++] = i == HOST_BIT ? CU_DEVICE_CPU : i;
	while (at < n)
		ret[at++] = NOWHERE;
	return n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get(int *ret, size_t bytes, CUmem_range_attribute attribute, CUdeviceptr ptr,
		    size_t range_bytes)
{
	struct range *range = managed_range(ptr, range_bytes);
	const struct advice *a = range ? range->advice : NULL;

	if (!ret || !a)
		return CUDA_ERROR_INVALID_VALUE;
	if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)
		return bytes % sizeof(*ret) ? CUDA_ERROR_INVALID_VALUE
					    : tell_accessed_by(a, ret, bytes / sizeof(*ret));
	if (bytes != sizeof(*ret))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		*ret = a->read_mostly;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		*ret = number_of(a->preferred);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		*ret = number_of(a->prefetched);
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		*ret = (int)a->preferred.type;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		*ret = a->preferred.id;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		*ret = (int)a->prefetched.type;
		return CUDA_SUCCESS;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		*ret = a->prefetched.id;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult get_many(void **data, const size_t *data_bytes,
			 const CUmem_range_attribute *attributes, size_t n, CUdeviceptr ptr,
			 size_t bytes)
{
	CUresult r =
		data && data_bytes && attributes && n ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

	for (size_t i = 0; i < n && !r; i++)
		r = get(data[i], data_bytes[i], attributes[i], ptr, bytes);
	return r;
}

static CUresult attach(CUcontext ctx, CUstream handle, CUdeviceptr ptr, size_t bytes,
		       unsigned int flags)
{
	struct range *range = sim_table_get(&sim.ranges, ptr);
	CUstream stream;

	if (!range || range->kind != RANGE_MANAGED || (bytes && bytes != range->bytes) ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST &&
	     flags != CU_MEM_ATTACH_SINGLE))
		return CUDA_ERROR_INVALID_VALUE;
	return stream_resolve(ctx, handle, &stream);
}

CUresult cuMemAdvise(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUdevice device)
{
	return API_LOCKED(advise(ptr, bytes, advice, location_of(device)));
}

CUresult cuMemAdvise_v2(CUdeviceptr ptr, size_t bytes, CUmem_advise advice, CUmemLocation location)
{
	return API_LOCKED(advise(ptr, bytes, advice, location));
}

CUresult cuMemPrefetchAsync(CUdeviceptr ptr, size_t bytes, CUdevice device, CUstream stream)
{
	return API_CTX_LOCKED(prefetch(ctx, ptr, bytes, location_of(device), stream));
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr ptr, size_t bytes, CUmemLocation location,
			       unsigned int flags, CUstream stream)
{
	return API_CTX_LOCKED(flags ? CUDA_ERROR_INVALID_VALUE
				    : prefetch(ctx, ptr, bytes, location, stream));
}

CUresult cuMemRangeGetAttribute(void *data, size_t data_bytes, CUmem_range_attribute attribute,
				CUdeviceptr ptr, size_t bytes)
{
	return API_LOCKED(get(data, data_bytes, attribute, ptr, bytes));
}

CUresult cuMemRangeGetAttributes(void **data, size_t *data_bytes, CUmem_range_attribute *attributes,
				 size_t n, CUdeviceptr ptr, size_t bytes)
{
	return API_LOCKED(get_many(data, data_bytes, attributes, n, ptr, bytes));
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr ptr, size_t bytes, unsigned int flags)
{
	return API_CTX_LOCKED(attach(ctx, stream, ptr, bytes, flags));
}
