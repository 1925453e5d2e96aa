// SPDX-License-Identifier: MIT
/*
 * Memory of NVIDIA GPUs, by the driver's virtual memory calls. Each open GPU holds its primary
 * context; a thread that calls makes it current for itself. What was imported cannot be exported
 * again (docs/driver-behaviour.md), so a handle is let go as soon as it is mapped.
 */
#include "gpu/copy.h"
#include "gpu/cuda/abi.h"
#include "gpu/cuda/memory.h"
#include "gpu/cuda/private.h"
#include "base/symbols.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define MEMORY_CALLS(X)                   \
	X(cuGetErrorName)                 \
	X(cuGetErrorString)               \
	X(cuDeviceGet)                    \
	X(cuDeviceGetCount)               \
	X(cuDeviceGetUuid_v2)             \
	X(cuDeviceGetPCIBusId)            \
	X(cuDevicePrimaryCtxRetain)       \
	X(cuDevicePrimaryCtxRelease_v2)   \
	X(cuCtxSetCurrent)                \
	X(cuCtxSetLimit)                  \
	X(cuMemGetInfo_v2)                \
	X(cuMemAddressReserve)            \
	X(cuMemAddressFree)               \
	X(cuMemCreate)                    \
	X(cuMemRelease)                   \
	X(cuMemMap)                       \
	X(cuMemUnmap)                     \
	X(cuMemSetAccess)                 \
	X(cuMemExportToShareableHandle)   \
	X(cuMemImportFromShareableHandle) \
	X(cuMemHostRegister_v2)           \
	X(cuMemHostUnregister)            \
	X(cuStreamCreate)                 \
	X(cuStreamDestroy_v2)             \
	X(cuStreamSynchronize)            \
	X(cuMemcpyDtoHAsync_v2)           \
	X(cuMemcpyHtoDAsync_v2)           \
	X(cuMemcpyDtoDAsync_v2)           \
	X(cuMemsetD32Async)               \
	X(cuEventCreate)                  \
	X(cuEventRecord)                  \
	X(cuEventSynchronize)             \
	X(cuEventDestroy_v2)

enum { STACK_LEAST_BYTES = 16 };

static struct {
#define X(name) __typeof__(name) *name;
	MEMORY_CALLS(X)
#undef X
} cu;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *missing;

struct dev_lane {
	struct dev_memory *memory;
	CUstream stream;
	CUevent events[DEV_LANE_DEPTH];
	uint64_t n; /* copies begun */
};

static void resolve(void)
{
	static const struct symbol calls[] = {
#define X(name) { #name, (void **)&cu.name },
		MEMORY_CALLS(X)
#undef X
	};

	missing = symbols_resolve(cuda_library(), calls, sizeof(calls) / sizeof(calls[0]));
}

int cuda_fail(struct brumate_error *err, const struct dev_memory *m, const char *call,
	      unsigned result)
{
	const char *name = NULL, *text = NULL;
	int code = result == CUDA_ERROR_OUT_OF_MEMORY ? ENOSPC : EIO;

	cu.cuGetErrorName((CUresult)result, &name);
	cu.cuGetErrorString((CUresult)result, &text);
	return brumate_fail(err, code, "%s: %s: %s (%d)%s%s", m->uuid, call,
			    name ? name : "unknown error", (int)result, text ? ": " : "",
			    text ? text : "");
}

int cuda_enter(struct dev_memory *m, struct brumate_error *err)
{
	return TRY(m, cuCtxSetCurrent, m->context);
}

/* The one with @uuid, or -ENODEV. */
static int find_device(struct dev_memory *m, const uint8_t *uuid, struct brumate_error *err)
{
	CUdevice device;
	CUuuid id;
	int n = 0;
	int r = TRY(m, cuDeviceGetCount, &n);

	for (int i = 0; i < n && r == 0; i++) {
		r = TRY(m, cuDeviceGet, &device, i);
		if (r == 0)
			r = TRY(m, cuDeviceGetUuid_v2, &id, device);
		if (r == 0 && !memcmp(id.bytes, uuid, DEV_UUID_BYTES)) {
			m->device = device;
			return 0;
		}
	}
	return r < 0 ? r : brumate_fail(err, ENODEV, "%s: no such GPU on this machine", m->uuid);
}

static int find_node(CUdevice device)
{
	char bus[32] = "", path[128], line[16] = "";

	if (cu.cuDeviceGetPCIBusId(bus, sizeof(bus), device) != CUDA_SUCCESS)
		return -1;
	for (char *p = bus; *p; p++)
		*p = (char)tolower((unsigned char)*p);
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bus);
	auto_fclose FILE *f = fopen(path, "re");
	return f && fgets(line, sizeof(line), f) ? atoi(line) : -1;
}

/* Our kernels have no frames: what the context holds for stacks is half of all it takes (docs/driver-behaviour.md). */
static void give_up_stacks(struct dev_memory *m)
{
	if (cuda_enter(m, NULL) == 0)
		cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, STACK_LEAST_BYTES);
}

static int chunks_open(struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
		       struct brumate_error *err)
{
	auto_free struct dev_memory *m = calloc(1, sizeof(*m));

	if (!m)
		return brumate_fail(err, ENOMEM, "GPU: %m");
	dev_uuid_format(m->uuid, uuid);
	pthread_once(&once, resolve);
	if (missing)
		return brumate_fail(err, EOPNOTSUPP, "NVIDIA driver is too old: it has no %s",
				    missing);
	int r = find_device(m, uuid, err);
	if (r == 0)
		r = TRY(m, cuDevicePrimaryCtxRetain, &m->context, m->device);
	if (r < 0)
		return r;
	give_up_stacks(m);
	*ret = take_ptr(&m);
	return 0;
}

static void memory_close(struct dev_memory *m)
{
	cu.cuCtxSetCurrent(NULL);
	cu.cuDevicePrimaryCtxRelease_v2(m->device);
	free(m);
}

static int memory_node(const uint8_t uuid[static DEV_UUID_BYTES])
{
	struct dev_memory m = { 0 };

	pthread_once(&once, resolve);
	return !missing && find_device(&m, uuid, NULL) == 0 ? find_node(m.device) : -1;
}

static int memory_reserve(struct dev_memory *m, uint64_t bytes, uint64_t *ret,
			  struct brumate_error *err)
{
	CUdeviceptr at = 0;
	int r = cuda_enter(m, err);

	if (r == 0)
		r = TRY(m, cuMemAddressReserve, &at, bytes, 0, 0, 0);
	if (r == 0)
		*ret = at;
	return r;
}

static void memory_unreserve(struct dev_memory *m, uint64_t at, uint64_t bytes)
{
	if (cuda_enter(m, NULL) == 0)
		cu.cuMemAddressFree(at, bytes);
}

static int memory_import(struct dev_memory *m, int fd, uint64_t bytes, uint64_t at,
			 struct brumate_error *err)
{
	CUmemGenericAllocationHandle handle;
	int r = cuda_enter(m, err);

	if (r == 0)
		r = TRY(m, cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r < 0)
		return r;
	r = TRY(m, cuMemMap, at, bytes, 0, handle, 0);
	cu.cuMemRelease(handle);
	return r;
}

static int fail_no_room(struct dev_memory *m, uint64_t bytes, struct brumate_error *err)
{
	size_t free_bytes = 0, total = 0;

	cu.cuMemGetInfo_v2(&free_bytes, &total);
	return brumate_fail(err, ENOSPC, "%s: no room for %llu MiB of device memory: %zu MiB free",
			    m->uuid, (unsigned long long)(bytes >> 20), free_bytes >> 20);
}

static int create_handle(struct dev_memory *m, uint64_t bytes, CUmemGenericAllocationHandle *ret,
			 struct brumate_error *err)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, m->device },
	};
	int r = cuda_enter(m, err);

	if (r < 0)
		return r;
	CUresult result = cu.cuMemCreate(ret, bytes, &prop, 0);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return fail_no_room(m, bytes, err);
	return result ? cuda_fail(err, m, "cuMemCreate", result) : 0;
}

static int memory_create(struct dev_memory *m, uint64_t bytes, uint64_t at, int *ret_fd,
			 struct brumate_error *err)
{
	CUmemGenericAllocationHandle handle;
	int fd = -1, r = create_handle(m, bytes, &handle, err);

	if (r < 0)
		return r;
	r = TRY(m, cuMemExportToShareableHandle, &fd, handle,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (r == 0)
		r = TRY(m, cuMemMap, at, bytes, 0, handle, 0);
	cu.cuMemRelease(handle);
	if (r < 0)
		cleanup_close(&fd);
	else
		*ret_fd = fd;
	return r;
}

static int memory_allow(struct dev_memory *m, uint64_t at, uint64_t bytes,
			struct brumate_error *err)
{
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, m->device },
					 CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	int r = cuda_enter(m, err);

	return r < 0 ? r : TRY(m, cuMemSetAccess, at, bytes, &access, 1);
}

static int memory_unmap(struct dev_memory *m, uint64_t at, uint64_t bytes,
			struct brumate_error *err)
{
	int r = cuda_enter(m, err);

	return r < 0 ? r : TRY(m, cuMemUnmap, at, bytes);
}

static int memory_pin(struct dev_memory *m, void *at, uint64_t bytes, struct brumate_error *err)
{
	int r = cuda_enter(m, err);

	if (r == 0)
		r = TRY(m, cuMemHostRegister_v2, at, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	return r == -ENOSPC ? -ENOMEM : r;
}

static void memory_unpin(struct dev_memory *m, void *at)
{
	if (cuda_enter(m, NULL) == 0)
		cu.cuMemHostUnregister(at);
}

static void lane_close(struct dev_lane *lane)
{
	if (cuda_enter(lane->memory, NULL) == 0) {
		if (lane->stream) {
			cu.cuStreamSynchronize(lane->stream);
			cu.cuStreamDestroy_v2(lane->stream);
		}
		for (int i = 0; i < DEV_LANE_DEPTH && lane->events[i]; i++)
			cu.cuEventDestroy_v2(lane->events[i]);
	}
	free(lane);
}

static int lane_open(struct dev_memory *m, bool spin, struct dev_lane **ret,
		     struct brumate_error *err)
{
	struct dev_lane *lane = calloc(1, sizeof(*lane));

	if (!lane)
		return brumate_fail(err, ENOMEM, "%s: %m", m->uuid);
	lane->memory = m;
	int r = cuda_enter(m, err);
	if (r == 0)
		r = TRY(m, cuStreamCreate, &lane->stream, CU_STREAM_NON_BLOCKING);
	for (int i = 0; i < DEV_LANE_DEPTH && r == 0; i++)
		r = TRY(m, cuEventCreate, &lane->events[i],
			CU_EVENT_DISABLE_TIMING | (spin ? 0u : CU_EVENT_BLOCKING_SYNC));
	if (r < 0)
		lane_close(lane);
	else
		*ret = lane;
	return r;
}

/* After a copy was begun. */
static int give_ticket(struct dev_lane *lane, uint64_t *ret, struct brumate_error *err)
{
	int r = TRY(lane->memory, cuEventRecord, lane->events[lane->n % DEV_LANE_DEPTH],
		    lane->stream);

	if (r == 0)
		*ret = lane->n++;
	return r;
}

static int lane_copy_out(struct dev_lane *lane, void *to, uint64_t from, uint64_t bytes,
			 uint64_t *ret_ticket, struct brumate_error *err)
{
	int r = cuda_enter(lane->memory, err);

	if (r == 0)
		r = TRY(lane->memory, cuMemcpyDtoHAsync_v2, to, from, bytes, lane->stream);
	return r < 0 ? r : give_ticket(lane, ret_ticket, err);
}

static int lane_copy_in(struct dev_lane *lane, uint64_t to, const void *from, uint64_t bytes,
			uint64_t *ret_ticket, struct brumate_error *err)
{
	int r = cuda_enter(lane->memory, err);

	if (r == 0)
		r = TRY(lane->memory, cuMemcpyHtoDAsync_v2, to, from, bytes, lane->stream);
	return r < 0 ? r : give_ticket(lane, ret_ticket, err);
}

static int lane_copy_within(struct dev_lane *lane, uint64_t to, uint64_t from, uint64_t bytes,
			    uint64_t *ret_ticket, struct brumate_error *err)
{
	int r = cuda_enter(lane->memory, err);

	if (r == 0)
		r = TRY(lane->memory, cuMemcpyDtoDAsync_v2, to, from, bytes, lane->stream);
	return r < 0 ? r : give_ticket(lane, ret_ticket, err);
}

static int lane_zero(struct dev_lane *lane, uint64_t at, uint64_t bytes, uint64_t *ret_ticket,
		     struct brumate_error *err)
{
	int r = cuda_enter(lane->memory, err);

	if (r == 0)
		r = TRY(lane->memory, cuMemsetD32Async, at, 0, bytes / sizeof(uint32_t),
			lane->stream);
	return r < 0 ? r : give_ticket(lane, ret_ticket, err);
}

static int lane_wait(struct dev_lane *lane, uint64_t ticket, struct brumate_error *err)
{
	int r = cuda_enter(lane->memory, err);

	if (r < 0)
		return r;
	return TRY(lane->memory, cuEventSynchronize, lane->events[ticket % DEV_LANE_DEPTH]);
}

const struct dev_memory_ops dev_cuda_memory = {
	.open = chunks_open,
	.close = memory_close,
	.node = memory_node,
	.reserve = memory_reserve,
	.unreserve = memory_unreserve,
	.import = memory_import,
	.create = memory_create,
	.allow = memory_allow,
	.unmap = memory_unmap,
	.pin = memory_pin,
	.unpin = memory_unpin,
	.lane_open = lane_open,
	.lane_close = lane_close,
	.copy_out = lane_copy_out,
	.copy_in = lane_copy_in,
	.copy_within = lane_copy_within,
	.zero = lane_zero,
	.wait = lane_wait,
	.digester_open = cuda_digester_open,
	.digester_close = cuda_digester_close,
	.digest = cuda_digest,
	.digest_wait = cuda_digest_wait,
};
