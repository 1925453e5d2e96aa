// SPDX-License-Identifier: MIT
/*
 * Host memory that devices reach: allocated page-locked, registered, and managed memory. None of it
 * is device memory of ours; a checkpoint leaves the first two alone and refuses the third.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim.h"

static void *map_host(size_t bytes)
{
	/* H200: page-locked memory of the driver is shared anonymous memory. */
	void *at = mmap(NULL, round_up(bytes, SIM_PAGE_BYTES), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

/* On the H200, managed memory shows from outside as a mapping of /dev/nvidia-uvm, high up. Here its
 * name says the same: that is what brumate's scan looks for. */
static void *map_managed(size_t bytes)
{
	size_t len = round_up(bytes, SIM_PAGE_BYTES);
	int fd = memfd_create("nvidia-uvm", MFD_CLOEXEC);
	void *at = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)len) == 0)
		at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	return at == MAP_FAILED ? NULL : at;
}

static CUresult alloc(CUcontext ctx, enum range_kind kind, void **ret, size_t bytes,
		      unsigned int flags)
{
	struct range *range;
	void *at;

	if (!ret || !bytes || bytes > SIZE_MAX / 2)
		return CUDA_ERROR_INVALID_VALUE;
	at = kind == RANGE_MANAGED ? map_managed(bytes) : map_host(bytes);
	if (!at)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range = range_new(kind, at, bytes);
	if (!range) {
		munmap(at, round_up(bytes, SIM_PAGE_BYTES));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	range->ctx = ctx;
	range->host_flags = flags;
	*ret = at;
	return CUDA_SUCCESS;
}

static CUresult host_alloc(CUcontext ctx, void **ret, size_t bytes, unsigned int flags)
{
	if (flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	return alloc(ctx, RANGE_HOST, ret, bytes, flags);
}

static CUresult managed_alloc(CUcontext ctx, CUdeviceptr *ret, size_t bytes, unsigned int flags)
{
	void *at;
	CUresult r;

	if (!ret || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
		return CUDA_ERROR_INVALID_VALUE;
	r = alloc(ctx, RANGE_MANAGED, &at, bytes, flags);
	if (!r)
		*ret = (uintptr_t)at;
	return r;
}

static CUresult host_free(CUcontext ctx, void *ptr)
{
	struct range *range = sim_table_get(&sim.ranges, (uintptr_t)ptr);

	if (!range || range->kind != RANGE_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	context_wait_idle(ctx);
	munmap(ptr, round_up(range->bytes, SIM_PAGE_BYTES));
	range_drop(range);
	return CUDA_SUCCESS;
}

static CUresult host_register(CUcontext ctx, void *ptr, size_t bytes, unsigned int flags)
{
	struct range *range, *last;

	if (!ptr || !bytes || flags & ~15u || (uintptr_t)ptr + bytes < (uintptr_t)ptr)
		return CUDA_ERROR_INVALID_VALUE;
	last = sim_table_floor(&sim.ranges, (uintptr_t)ptr + bytes - 1);
	if (last && last->base + last->bytes > (uintptr_t)ptr)
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	range = range_new(RANGE_REGISTERED, ptr, bytes);
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range->ctx = ctx;
	range->host_flags = flags;
	return CUDA_SUCCESS;
}

static CUresult host_unregister(CUcontext ctx, void *ptr)
{
	struct range *range = sim_table_get(&sim.ranges, (uintptr_t)ptr);

	if (!ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (!range || range->kind != RANGE_REGISTERED)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	context_wait_idle(ctx);
	range_drop(range);
	return CUDA_SUCCESS;
}

static CUresult host_device_pointer(CUdeviceptr *ret, void *ptr, unsigned int flags)
{
	struct range *range = range_find((uintptr_t)ptr);

	if (!ret || flags || !range || range->device >= 0)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = (uintptr_t)ptr;
	return CUDA_SUCCESS;
}

CUresult cuMemAllocHost_v2(void **ptr, size_t bytes)
{
	return API_CTX_LOCKED(host_alloc(ctx, ptr, bytes, 0));
}

CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
	return API_CTX_LOCKED(host_alloc(ctx, ptr, bytes, flags));
}

CUresult cuMemFreeHost(void *ptr)
{
	return API_CTX_LOCKED(host_free(ctx, ptr));
}

CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags)
{
	return API_CTX_LOCKED(host_register(ctx, ptr, bytes, flags));
}

CUresult cuMemHostUnregister(void *ptr)
{
	return API_CTX_LOCKED(host_unregister(ctx, ptr));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ret, void *ptr, unsigned int flags)
{
	return API_CTX_LOCKED(host_device_pointer(ret, ptr, flags));
}

CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned int flags)
{
	return API_CTX_LOCKED(managed_alloc(ctx, ptr, bytes, flags));
}
