// SPDX-License-Identifier: MIT
/*
 * The virtual memory API: physical allocations as handles, reserved addresses, mappings, access per
 * device, and handles that travel as file descriptors. Handles are addresses of struct phys. Host memory that is made
 * this way is a file of the first GPU's as well, and counts there: nobody asks how much of it there is.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

#define HOST_ACCESS (1ull << 63) /* of struct range */

struct reservation {
	CUdeviceptr base;
	size_t bytes;
};

static struct phys *phys_of(CUmemGenericAllocationHandle handle)
{
	struct phys *phys = sim_table_get(&sim.physes, handle);

	return phys && phys->handles ? phys : NULL;
}

bool vmm_reservation(CUdeviceptr ptr, CUdeviceptr *ret_base, size_t *ret_bytes)
{
	struct reservation *reservation = sim_table_floor(&sim.reservations, ptr);

	if (!reservation || ptr - reservation->base >= reservation->bytes)
		return false;
	*ret_base = reservation->base;
	*ret_bytes = reservation->bytes;
	return true;
}

bool vmm_reserved(CUdeviceptr ptr)
{
	CUdeviceptr base;
	size_t bytes;

	return vmm_reservation(ptr, &base, &bytes);
}

static bool aligned(uint64_t n)
{
	return n % SIM_GRANULE_BYTES == 0;
}

/* The machine has one node of host memory. */
static bool is_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location->id == 0;
}

static CUresult check_prop(const CUmemAllocationProp *prop)
{
	if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE && !is_host(&prop->location))
		return CUDA_ERROR_NOT_SUPPORTED;
	if (!is_host(&prop->location) && !device_valid(prop->location.id))
		return CUDA_ERROR_INVALID_DEVICE;
	if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return CUDA_SUCCESS;
}

static CUresult reserve(CUdeviceptr *ret, size_t bytes, size_t alignment, CUdeviceptr hint,
			unsigned long long flags)
{
	struct reservation *reservation;
	void *va = MAP_FAILED;

	if (!ret || !bytes || !aligned(bytes) || flags || alignment & (alignment - 1))
		return CUDA_ERROR_INVALID_VALUE;
	if (alignment < SIM_GRANULE_BYTES)
		alignment = SIM_GRANULE_BYTES;
	reservation = malloc(sizeof(*reservation));
	if (!reservation)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (hint && hint % alignment == 0)
		va = mmap((void *)(uintptr_t)hint, bytes, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	if (va == MAP_FAILED)
		va = va_reserve(bytes, alignment);
	if (!va || sim_table_add(&sim.reservations, (uintptr_t)va, reservation) < 0) {
		if (va)
			munmap(va, bytes);
		free(reservation);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*reservation = (struct reservation){ (uintptr_t)va, bytes };
	*ret = reservation->base;
	return CUDA_SUCCESS;
}

/* The first range at or above @ptr, if it starts before @end. */
static struct range *range_within(CUdeviceptr ptr, CUdeviceptr end)
{
	struct range *range = sim_table_floor(&sim.ranges, end - 1);

	return range && range->base + range->bytes > ptr ? range : NULL;
}

static CUresult unreserve(CUdeviceptr ptr, size_t bytes)
{
	struct reservation *reservation = sim_table_get(&sim.reservations, ptr);

	if (!reservation || reservation->bytes != bytes || range_within(ptr, ptr + bytes))
		return CUDA_ERROR_INVALID_VALUE;
	munmap((void *)(uintptr_t)ptr, bytes);
	sim_table_remove(&sim.reservations, ptr);
	free(reservation);
	return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *ret, size_t bytes,
		       const CUmemAllocationProp *prop, unsigned long long flags)
{
	struct phys *phys;
	CUresult r = check_prop(prop);

	if (!ret || !bytes || !aligned(bytes) || flags)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r)
		return r;
	phys = phys_new(prop->location.id, bytes, &r);
	if (!phys)
		return r;
	phys->prop = *prop;
	phys->handles = 1;
	*ret = (uintptr_t)phys;
	return CUDA_SUCCESS;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
	struct phys *phys = phys_of(handle);

	if (!phys)
		return CUDA_ERROR_INVALID_VALUE;
	phys->handles--;
	phys_put(phys);
	return CUDA_SUCCESS;
}

static CUresult map(CUdeviceptr ptr, size_t bytes, size_t offset,
		    CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	struct reservation *reservation = sim_table_floor(&sim.reservations, ptr);
	struct phys *phys = phys_of(handle);
	struct range *range;

	if (!phys || flags || !bytes || !aligned(bytes) || !aligned(offset) || !aligned(ptr) ||
	    offset > phys->file.bytes || bytes > phys->file.bytes - offset)
		return CUDA_ERROR_INVALID_VALUE;
	if (!reservation || ptr + bytes > reservation->base + reservation->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (range_within(ptr, ptr + bytes))
		return CUDA_ERROR_ALREADY_MAPPED;
	range = range_new(RANGE_VMM, (void *)(uintptr_t)ptr, bytes);
	if (!range)
		return CUDA_ERROR_OUT_OF_MEMORY;
	range->device = phys->device;
	range->view = view_new((void *)(uintptr_t)ptr, bytes, phys, offset, PROT_NONE);
	if (!range->view) {
		range_drop(range);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

/* Whether [ptr, ptr + bytes) is made of whole mappings. */
static bool whole_mappings(CUdeviceptr ptr, size_t bytes)
{
	CUdeviceptr end = ptr + bytes;

	while (ptr < end) {
		struct range *range = sim_table_get(&sim.ranges, ptr);

		if (!range || range->kind != RANGE_VMM)
			return false;
		ptr += range->bytes;
	}
	return bytes && ptr == end;
}

static CUresult unmap(CUdeviceptr ptr, size_t bytes)
{
	CUdeviceptr end = ptr + bytes;

	if (!whole_mappings(ptr, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	while (ptr < end) {
		struct range *range = sim_table_get(&sim.ranges, ptr);

		ptr += range->bytes;
		view_free(range->view, true);
		range_drop(range);
	}
	return CUDA_SUCCESS;
}

static CUresult grant(struct range *range, const CUmemAccessDesc *desc, size_t count)
{
	int prot = PROT_NONE;

	for (size_t i = 0; i < count; i++) {
		uint64_t bit =
			is_host(&desc[i].location) ? HOST_ACCESS : 1ull << desc[i].location.id;

		if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
			range->access &= ~bit;
		else
			range->access |= bit;
		if (desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			prot |= PROT_WRITE;
	}
	/* One mapping serves all devices: it allows what the most trusted of them may do. */
	if (range->access)
		prot |= PROT_READ | (range->view->prot & PROT_WRITE);
	else
		prot = PROT_NONE;
	range->view->prot = prot;
	return mprotect(range->view->va, range->bytes, prot) < 0 ? CUDA_ERROR_OPERATING_SYSTEM
								 : CUDA_SUCCESS;
}

/* Device memory has no place on the host; of what was imported it is not known which it is. */
static bool can_reach(const struct range *range, const CUmemLocation *location)
{
	const struct phys *phys = range->view->phys;

	if (location->type == CU_MEM_LOCATION_TYPE_DEVICE)
		return config_get()->peers || is_host(&phys->prop.location) ||
		       location->id == phys->device;
	return is_host(location) && (is_host(&phys->prop.location) || phys->imported);
}

static CUresult set_access(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	CUdeviceptr end = ptr + bytes;
	CUresult r = CUDA_SUCCESS;

	if (!desc || !count || !whole_mappings(ptr, bytes))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count; i++) {
		if (!can_reach(sim_table_get(&sim.ranges, ptr), &desc[i].location))
			return CUDA_ERROR_NOT_SUPPORTED;
		if (!is_host(&desc[i].location) && !device_valid(desc[i].location.id))
			return CUDA_ERROR_INVALID_DEVICE;
	}
	while (ptr < end && !r) {
		struct range *range = sim_table_get(&sim.ranges, ptr);

		r = grant(range, desc, count);
		ptr += range->bytes;
	}
	return r;
}

static CUresult get_access(unsigned long long *ret, const CUmemLocation *location, CUdeviceptr ptr)
{
	struct range *range = range_find(ptr);

	if (!ret || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE ||
	    !device_valid(location->id) || !range || range->kind != RANGE_VMM)
		return CUDA_ERROR_INVALID_VALUE;
	*ret = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	if (range->access & 1ull << location->id)
		*ret = range->view->prot & PROT_WRITE ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
						      : CU_MEM_ACCESS_FLAGS_PROT_READ;
	return CUDA_SUCCESS;
}

static CUresult granularity(size_t *bytes, const CUmemAllocationProp *prop,
			    CUmemAllocationGranularity_flags option)
{
	CUresult r = check_prop(prop);

	if (!bytes || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)
		return CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*bytes = SIM_GRANULE_BYTES;
	return r;
}

static CUresult export_handle(void *ret, CUmemGenericAllocationHandle handle,
			      CUmemAllocationHandleType type, unsigned long long flags)
{
	struct phys *phys = phys_of(handle);
	int fd;

	/* H200: what was imported cannot be exported again. */
	if (!ret || !phys || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
	    phys->imported ||
	    !(phys->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
		return CUDA_ERROR_INVALID_VALUE;
	fd = vram_open(&phys->file);
	if (fd < 0)
		return CUDA_ERROR_OPERATING_SYSTEM;
	phys->exported = true;
	*(int *)ret = fd;
	return CUDA_SUCCESS;
}

/* H200: the same descriptor can be imported any number of times. */
static CUresult import_handle(CUmemGenericAllocationHandle *ret, void *os_handle,
			      CUmemAllocationHandleType type)
{
	struct vram_file file;
	struct phys *phys;

	if (!ret || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_INVALID_VALUE;
	if (vram_adopt(&file, (int)(intptr_t)os_handle) < 0)
		return CUDA_ERROR_INVALID_VALUE;
	phys = phys_adopt(&file);
	if (!phys)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (phys->device < 0) {
		phys_put(phys);
		return CUDA_ERROR_INVALID_DEVICE;
	}
	phys->prop = (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, phys->device },
	};
	phys->imported = true;
	phys->handles = 1;
	*ret = (uintptr_t)phys;
	return CUDA_SUCCESS;
}

static CUresult retain(CUmemGenericAllocationHandle *ret, void *addr)
{
	struct range *range = range_find((uintptr_t)addr);

	if (!ret || !range || range->kind != RANGE_VMM)
		return CUDA_ERROR_INVALID_VALUE;
	range->view->phys->handles++;
	*ret = (uintptr_t)range->view->phys;
	return CUDA_SUCCESS;
}

static CUresult properties(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
	struct phys *phys = phys_of(handle);

	if (!prop || !phys)
		return CUDA_ERROR_INVALID_VALUE;
	*prop = phys->prop;
	return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t alignment, CUdeviceptr hint,
			     unsigned long long flags)
{
	return API_SOUND_LOCKED(reserve(ptr, bytes, alignment, hint, flags));
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
	return API_SOUND_LOCKED(unreserve(ptr, bytes));
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
		     const CUmemAllocationProp *prop, unsigned long long flags)
{
	return API_SOUND_LOCKED(create(handle, bytes, prop, flags));
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	return API_SOUND_LOCKED(release(handle));
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
		  unsigned long long flags)
{
	return API_SOUND_LOCKED(map(ptr, bytes, offset, handle, flags));
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
	return API_SOUND_LOCKED(unmap(ptr, bytes));
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
	return API_SOUND_LOCKED(set_access(ptr, bytes, desc, count));
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
	return API_LOCKED(get_access(flags, location, ptr));
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *prop,
				       CUmemAllocationGranularity_flags option)
{
	return API_LOCKED(granularity(bytes, prop, option));
}

CUresult cuMemExportToShareableHandle(void *ret, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags)
{
	return API_SOUND_LOCKED(export_handle(ret, handle, type, flags));
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
					CUmemAllocationHandleType type)
{
	return API_SOUND_LOCKED(import_handle(handle, os_handle, type));
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
	return API_LOCKED(retain(handle, addr));
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
						CUmemGenericAllocationHandle handle)
{
	return API_LOCKED(properties(prop, handle));
}
