// SPDX-License-Identifier: MIT
/* What memory in pieces asks of the driver, done by CUDA's virtual memory API; and the program's contexts. */
#include <errno.h>
#include <string.h>

#include "interpose/core/backend.h"
#include "interpose/core/memory.h"
#include "interpose/cuda/calls.h"
#include "interpose/cuda/gpudirect.h"
#include "interpose/entry/entry.h"

/* ---- results ---- */

static const struct {
	int result;
	CUresult number;
} results[] = {
	{ -ENOMEM, CUDA_ERROR_OUT_OF_MEMORY },	   { -EINVAL, CUDA_ERROR_INVALID_VALUE },
	{ -ENOENT, CUDA_ERROR_NOT_FOUND },	   { -ENXIO, CUDA_ERROR_NOT_MAPPED },
	{ -EOPNOTSUPP, CUDA_ERROR_NOT_SUPPORTED }, { -EAGAIN, CUDA_ERROR_NOT_READY },
	{ -ELOOP, CUDA_ERROR_INVALID_CONTEXT },	   { -ESHUTDOWN, CUDA_ERROR_DEINITIALIZED },
};

CUresult to_driver(int result)
{
	if (result >= 0)
		return (CUresult)result;
	for (size_t i = 0; i < sizeof(results) / sizeof(*results); i++)
		if (results[i].result == result)
			return results[i].number;
	return CUDA_ERROR_UNKNOWN;
}

int backend_number(int result)
{
	return (int)to_driver(result);
}

/* What interpose/core acts on it knows by errno; all else it passes on as it is. */
static int from_driver(CUresult r)
{
	return r == CUDA_ERROR_OUT_OF_MEMORY   ? -ENOMEM
	       : r == CUDA_ERROR_INVALID_VALUE ? -EINVAL
	       : r == CUDA_ERROR_DEINITIALIZED ? -ESHUTDOWN
					       : (int)r;
}

bool backend_is_lasting(int result)
{
	return result > 0 && driver_is_lasting(result);
}

bool backend_is_there(void)
{
	int n;

	return driver.cuDeviceGetCount(&n) != CUDA_ERROR_DEINITIALIZED;
}

/* ---- devices ---- */

static int attribute(CUdevice device, CUdevice_attribute which)
{
	int value = 0;

	return driver.cuDeviceGetAttribute(&value, which, device) ? 0 : value;
}

void backend_read_uuid(int ordinal, uint8_t *ret)
{
	__typeof__(driver.cuDeviceGetUuid) *get =
		driver.cuDeviceGetUuid_v2 ? &driver.cuDeviceGetUuid_v2 : &driver.cuDeviceGetUuid;
	CUuuid uuid = { { 0 } };
	CUdevice device;

	if (*get && !driver.cuDeviceGet(&device, ordinal) && !(*get)(&uuid, device))
		memcpy(ret, uuid.bytes, AGENT_UUID_BYTES);
}

static bool can_manage(CUdevice device)
{
	return driver.cuMemCreate && driver.cuMemAddressReserve && driver.cuMemMap &&
	       driver.cuMemSetAccess && driver.cuMemExportToShareableHandle &&
	       driver.cuMemImportFromShareableHandle &&
	       attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
	       attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

/* Access to a piece takes the driver 0.7 ms however large it is, from 256 MiB on (H200, 580.159.04): few are wanted. */
#define PIECE_MOST_BYTES (1ull << 30)

void backend_learn_device(int ordinal, struct device *ret)
{
	CUmemAllocationProp prop;
	struct memory_kind kind;
	CUdevice device;
	size_t total = 0;

	if (driver.cuDeviceGet(&device, ordinal) || driver.cuDeviceTotalMem_v2(&total, device))
		return;
	ret->total_bytes = total;
	ret->piece_max_bytes = PIECE_MOST_BYTES;
	backend_read_uuid(ordinal, ret->uuid);
	ret->rdma =
		attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) &&
		gpudirect_possible_here();
	kind = backend_kind(ordinal, ret->rdma);
	prop = prop_of(&kind);
	ret->usable = can_manage(device) &&
		      !driver.cuMemGetAllocationGranularity(&ret->granule_bytes, &prop,
							    CU_MEM_ALLOC_GRANULARITY_MINIMUM);
}

/* ---- memory ---- */

_Static_assert(sizeof(CUmemAllocationProp) == sizeof(((struct memory_kind *)NULL)->vendors),
	       "one fits in the other");

struct memory_kind kind_of(const CUmemAllocationProp *prop)
{
	struct memory_kind kind = { .device = prop->location.id,
				    .rdma = prop->allocFlags.gpuDirectRDMACapable };

	memcpy(kind.vendors, prop, sizeof(*prop));
	return kind;
}

CUmemAllocationProp prop_of(const struct memory_kind *kind)
{
	CUmemAllocationProp prop;

	memcpy(&prop, kind->vendors, sizeof(prop));
	return prop;
}

struct memory_kind backend_kind(int ordinal, bool rdma)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, ordinal },
	};

	prop.allocFlags.gpuDirectRDMACapable = rdma;
	return kind_of(&prop);
}

int backend_reserve(uint64_t *ret, size_t bytes)
{
	CUdeviceptr va;
	CUresult r = driver.cuMemAddressReserve(&va, bytes, 0, 0, 0);

	if (!r)
		*ret = va;
	return from_driver(r);
}

void backend_unreserve(uint64_t va, size_t bytes)
{
	driver.cuMemAddressFree(va, bytes);
}

int backend_free(uint64_t *ret_free, uint64_t *ret_total)
{
	size_t free_bytes = 0, total_bytes = 0;
	int r = from_driver(driver.cuMemGetInfo_v2(&free_bytes, &total_bytes));

	*ret_free = free_bytes;
	*ret_total = total_bytes;
	return r;
}

int backend_create(uint64_t *ret, size_t bytes, const struct memory_kind *kind)
{
	CUmemAllocationProp prop = prop_of(kind);
	CUmemGenericAllocationHandle handle;
	CUresult r;

	prop.requestedHandleTypes |= CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	r = driver.cuMemCreate(&handle, bytes, &prop, 0);
	if (!r)
		*ret = handle;
	return from_driver(r);
}

int backend_release(uint64_t handle)
{
	return from_driver(driver.cuMemRelease(handle));
}

int backend_map(uint64_t va, size_t bytes, size_t offset, uint64_t handle)
{
	return from_driver(driver.cuMemMap(va, bytes, offset, handle, 0));
}

int backend_unmap(uint64_t va, size_t bytes)
{
	return from_driver(driver.cuMemUnmap(va, bytes));
}

int backend_set_access(uint64_t va, size_t bytes, const struct access *access, size_t n)
{
	CUmemAccessDesc desc[DEVICES_MAX];

	for (size_t i = 0; i < n; i++)
		desc[i] = (CUmemAccessDesc){ { CU_MEM_LOCATION_TYPE_DEVICE, access[i].device },
					     access[i].flags };
	return from_driver(driver.cuMemSetAccess(va, bytes, desc, n));
}

int backend_export(int *ret_fd, uint64_t handle)
{
	return from_driver(driver.cuMemExportToShareableHandle(
		ret_fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
}

int backend_import(uint64_t *ret, int fd)
{
	CUmemGenericAllocationHandle handle;
	CUresult r = driver.cuMemImportFromShareableHandle(
		&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);

	if (!r)
		*ret = handle;
	return from_driver(r);
}

int backend_kind_of(uint64_t handle, struct memory_kind *ret)
{
	CUmemAllocationProp prop;
	CUresult r = driver.cuMemGetAllocationPropertiesFromHandle(&prop, handle);

	if (!r)
		*ret = kind_of(&prop);
	return from_driver(r);
}

int backend_copy(uint64_t to, uint64_t from, size_t bytes)
{
	return from_driver(driver.cuMemcpyDtoDAsync_v2(to, from, bytes, NULL));
}

/* ---- contexts ---- */

static struct context *find_context(CUcontext handle)
{
	struct context *context;

	memory_lock();
	context = context_find(handle);
	memory_unlock();
	return context;
}

struct context *context_current(CUresult *ret_error)
{
	struct context *context;
	CUcontext handle = NULL;
	size_t free_bytes, total;
	CUdevice device;
	CUresult r = driver.cuCtxGetCurrent(&handle);

	*ret_error = r ? r : CUDA_ERROR_INVALID_CONTEXT;
	if (r || !handle)
		return NULL;
	context = find_context(handle);
	if (context && !calls_have_failed())
		return context;
	/* New to us, or one in which a kernel may have failed. One that was destroyed can still be current: this call says so. */
	r = driver.cuMemGetInfo_v2(&free_bytes, &total);
	if (!r && context)
		return context;
	if (!r)
		r = driver.cuCtxGetDevice(&device);
	if (!r && !device_get(device))
		r = CUDA_ERROR_INVALID_DEVICE;
	*ret_error = r ? r : CUDA_ERROR_OUT_OF_MEMORY;
	return r ? NULL : context_add(handle, device, false);
}

void context_note(CUcontext handle, bool green)
{
	CUdevice device;

	if (find_context(handle) || driver.cuCtxPushCurrent_v2(handle))
		return;
	if (!driver.cuCtxGetDevice(&device) && device_get(device))
		context_add(handle, device, green);
	driver.cuCtxPopCurrent_v2(NULL);
}

int backend_enter(void *context)
{
	return from_driver(driver.cuCtxPushCurrent_v2(context));
}

void backend_leave(void)
{
	driver.cuCtxPopCurrent_v2(NULL);
}

int backend_retain(void **ret, int device)
{
	CUcontext handle;
	CUresult r = driver.cuDevicePrimaryCtxRetain(&handle, device);

	if (!r)
		*ret = handle;
	return from_driver(r);
}

void backend_release_retained(int device)
{
	driver.cuDevicePrimaryCtxRelease_v2(device);
}

int backend_wait_current(void)
{
	return from_driver(driver.cuCtxSynchronize());
}

int backend_wait(void *context)
{
	CUcontext current = NULL;
	CUresult r;

	if (!driver.cuCtxGetCurrent(&current) && current == context)
		return backend_wait_current();
	r = driver.cuCtxPushCurrent_v2(context);
	if (r)
		return from_driver(r);
	r = driver.cuCtxSynchronize();
	driver.cuCtxPopCurrent_v2(NULL);
	return from_driver(r);
}

/*
 * ---- the stacks of kernels ----
 *
 * Each context keeps device memory for those of all threads that its GPU can run at once, as much as its limit
 * says. While the job's memory is taken away no kernel runs, and the limit is lowered, so that the driver has
 * less to save; before the gate opens it is what the program had. Only the agent's thread comes here.
 */

enum { LOWERED_BYTES = 16 };

/* The limit is read each time, as programs may set one themselves. */
static CUresult lower_stack(struct context *context)
{
	size_t limit;
	CUresult r = driver.cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE);

	if (r || (context->stack_bytes && limit == context->lowered_to) || limit <= LOWERED_BYTES)
		return r;
	r = driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, LOWERED_BYTES);
	if (r)
		return r;
	context->stack_bytes = limit;
	/* The driver may have rounded it. */
	if (driver.cuCtxGetLimit(&context->lowered_to, CU_LIMIT_STACK_SIZE))
		context->lowered_to = LOWERED_BYTES;
	return CUDA_SUCCESS;
}

/* If the limit is not the lowered one, the program has set it since: it stays. */
static CUresult set_stack_back(struct context *context)
{
	size_t limit;
	CUresult r = driver.cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE);

	if (!r && limit == context->lowered_to)
		r = driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, context->stack_bytes);
	if (!r)
		context->stack_bytes = 0;
	return r;
}

static CUresult call_in_context(struct context *context, CUresult (*call)(struct context *context))
{
	CUresult r = driver.cuCtxPushCurrent_v2(context->handle);

	if (r)
		return r;
	r = call(context);
	driver.cuCtxPopCurrent_v2(NULL);
	return r;
}

void backend_lower_stacks(void)
{
	if (!driver.cuCtxGetLimit || !driver.cuCtxSetLimit)
		return;
	/* A context whose limit cannot be lowered is merely more to save. */
	for (struct context *c = memory.contexts; c; c = c->next)
		if (!c->green)
			call_in_context(c, lower_stack);
}

int backend_set_stacks_back(void)
{
	CUresult first = CUDA_SUCCESS;

	for (struct context *c = memory.contexts; c; c = c->next) {
		CUresult r = c->stack_bytes ? call_in_context(c, set_stack_back) : CUDA_SUCCESS;

		first = first ? first : r;
	}
	return from_driver(first);
}
