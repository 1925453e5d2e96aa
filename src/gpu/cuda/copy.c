// SPDX-License-Identifier: MIT
/*
 * Memory of NVIDIA GPUs, by the driver's virtual memory calls. Each open GPU holds its primary context; a calling
 * thread makes it current for itself. Imported memory cannot be exported again (docs/driver-behaviour.md), so a
 * handle is released as soon as it is mapped.
 */
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/symbols.h"
#include "gpu/copy.h"
#include "gpu/cuda/abi.h"
#include "gpu/cuda/private.h"

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
	X(cuEventDestroy_v2)              \
	X(cuMemAlloc_v2)                  \
	X(cuMemFree_v2)                   \
	X(cuMemHostAlloc)                 \
	X(cuMemFreeHost)                  \
	X(cuModuleLoadData)               \
	X(cuModuleGetFunction)            \
	X(cuLaunchKernel)

enum { STACK_LEAST_BYTES = 16 };

static struct {
#define X(name) __typeof__(name) *name;
	MEMORY_CALLS(X)
#undef X
} cu;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static const char *missing;

struct dev_memory {
	CUdevice device;
	CUcontext context;
	CUmodule digests; /* loaded on first use; under the lock */
	char uuid[DEV_UUID_TEXT_BYTES];
};

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

/* -ENOSPC if device memory is short, else -EIO, with the driver's text. */
static int fail(struct brumate_error *err, const struct dev_memory *m, const char *call,
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

/* Makes a call of the table: 0, or fail() with the call's name and `err`. */
#define TRY(m, call, ...)                                     \
	({                                                    \
		CUresult result_ = cu.call(__VA_ARGS__);      \
		result_ ? fail(err, (m), #call, result_) : 0; \
	})

/* Makes the GPU's context current for this thread. */
static int enter(struct dev_memory *m, struct brumate_error *err)
{
	return TRY(m, cuCtxSetCurrent, m->context);
}

/* Finds the device with @uuid, or -ENODEV. */
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

/* Our kernels have no stack frames, and a context's memory for stacks is half of all that it takes
 * (docs/driver-behaviour.md). */
static void give_up_stacks(struct dev_memory *m)
{
	if (enter(m, NULL) == 0)
		cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, STACK_LEAST_BYTES);
}

static int memory_open(struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
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
	int r = enter(m, err);

	if (r == 0)
		r = TRY(m, cuMemAddressReserve, &at, bytes, 0, 0, 0);
	if (r == 0)
		*ret = at;
	return r;
}

static void memory_unreserve(struct dev_memory *m, uint64_t at, uint64_t bytes)
{
	if (enter(m, NULL) == 0)
		cu.cuMemAddressFree(at, bytes);
}

static int memory_import(struct dev_memory *m, int fd, uint64_t bytes, uint64_t at,
			 struct brumate_error *err)
{
	CUmemGenericAllocationHandle handle;
	int r = enter(m, err);

	if (r == 0)
		r = TRY(m, cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	if (r < 0)
		return r;
	r = TRY(m, cuMemMap, at, bytes, 0, handle, 0);
	cu.cuMemRelease(handle);
	return r;
}

static uint64_t memory_free_bytes(struct dev_memory *m)
{
	size_t free_bytes = 0, total;

	return enter(m, NULL) < 0 || cu.cuMemGetInfo_v2(&free_bytes, &total) ? 0 : free_bytes;
}

static int fail_no_room(struct dev_memory *m, uint64_t bytes, struct brumate_error *err)
{
	return brumate_fail(err, ENOSPC, "%s: no room for %llu MiB of device memory: %llu MiB free",
			    m->uuid, (unsigned long long)(bytes >> 20),
			    (unsigned long long)memory_free_bytes(m) >> 20);
}

static int create_handle(struct dev_memory *m, uint64_t bytes, CUmemGenericAllocationHandle *ret,
			 struct brumate_error *err)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, m->device },
	};
	int r = enter(m, err);

	if (r < 0)
		return r;
	CUresult result = cu.cuMemCreate(ret, bytes, &prop, 0);
	if (result == CUDA_ERROR_OUT_OF_MEMORY)
		return fail_no_room(m, bytes, err);
	return result ? fail(err, m, "cuMemCreate", result) : 0;
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
	int r = enter(m, err);

	return r < 0 ? r : TRY(m, cuMemSetAccess, at, bytes, &access, 1);
}

static int memory_unmap(struct dev_memory *m, uint64_t at, uint64_t bytes,
			struct brumate_error *err)
{
	int r = enter(m, err);

	return r < 0 ? r : TRY(m, cuMemUnmap, at, bytes);
}

static int memory_pin(struct dev_memory *m, void *at, uint64_t bytes, struct brumate_error *err)
{
	int r = enter(m, err);

	if (r == 0)
		r = TRY(m, cuMemHostRegister_v2, at, bytes, CU_MEMHOSTREGISTER_PORTABLE);
	return r == -ENOSPC ? -ENOMEM : r;
}

static void memory_unpin(struct dev_memory *m, void *at)
{
	if (enter(m, NULL) == 0)
		cu.cuMemHostUnregister(at);
}

static void lane_close(struct dev_lane *lane)
{
	if (enter(lane->memory, NULL) == 0) {
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
	int r = enter(m, err);
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

/* Takes a ticket for the copy that was just begun. */
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
	int r = enter(lane->memory, err);

	if (r == 0)
		r = TRY(lane->memory, cuMemcpyDtoHAsync_v2, to, from, bytes, lane->stream);
	return r < 0 ? r : give_ticket(lane, ret_ticket, err);
}

static int lane_copy_in(struct dev_lane *lane, uint64_t to, const void *from, uint64_t bytes,
			uint64_t *ret_ticket, struct brumate_error *err)
{
	int r = enter(lane->memory, err);

	if (r == 0)
		r = TRY(lane->memory, cuMemcpyHtoDAsync_v2, to, from, bytes, lane->stream);
	return r < 0 ? r : give_ticket(lane, ret_ticket, err);
}

static int lane_zero(struct dev_lane *lane, uint64_t at, uint64_t bytes, uint64_t *ret_ticket,
		     struct brumate_error *err)
{
	int r = enter(lane->memory, err);

	if (r == 0)
		r = TRY(lane->memory, cuMemsetD32Async, at, 0, bytes / sizeof(uint32_t),
			lane->stream);
	return r < 0 ? r : give_ticket(lane, ret_ticket, err);
}

static int lane_wait(struct dev_lane *lane, uint64_t ticket, struct brumate_error *err)
{
	int r = enter(lane->memory, err);

	if (r < 0)
		return r;
	return TRY(lane->memory, cuEventSynchronize, lane->events[ticket % DEV_LANE_DEPTH]);
}

/*
 * ---- digests ----
 *
 * The kernels of digest.cu compute them on a stream of their own. The GPU writes results to pinned host memory: a
 * copy of them would wait behind the bulk copies of other streams.
 */

enum {
	LEAF_THREADS = 128,
	CHUNK_THREADS = 64,
	LEAF_WORDS = CHUNK_LEAF_BYTES / 4,
	DIGEST_WORDS = DIGEST_BYTES / 4,
	PREFIX_BYTES = 24, /* in front of the leaf digests: docs/image-format.md */
};

/* In pinned host memory, which the GPU reaches at the same address. */
struct results {
	char prefixes[2][PREFIX_BYTES]; /* for whole chunks, and for the last one */
	char pad[16];
	struct digest digests[]; /* followed by a word for each chunk: it is not zero */
};

struct dev_digester {
	struct dev_memory *memory;
	CUfunction digest_fn;
	CUstream stream;
	CUevent done;
	CUdeviceptr leaves;
	struct results *results;
	uint32_t *nonzero; /* after the digests */
	size_t n_max, n;   /* chunks */
};

static int load_kernels(struct dev_digester *d, struct brumate_error *err)
{
	struct dev_memory *m = d->memory;
	int r = 0;

	pthread_mutex_lock(&loading);
	if (!m->digests)
		r = TRY(m, cuModuleLoadData, &m->digests, cuda_digest_ptx);
	pthread_mutex_unlock(&loading);
	if (r == 0)
		r = TRY(m, cuModuleGetFunction, &d->digest_fn, m->digests, "brumate_digest");
	return r;
}

static int make_room(struct dev_digester *d, struct brumate_error *err)
{
	struct dev_memory *m = d->memory;
	size_t digests_bytes = d->n_max * sizeof(struct digest);
	void *host = NULL;
	int r = TRY(m, cuMemHostAlloc, &host,
		    sizeof(struct results) + digests_bytes + d->n_max * sizeof(uint32_t),
		    CU_MEMHOSTALLOC_DEVICEMAP);

	if (r < 0)
		return r;
	d->results = host;
	d->nonzero = (uint32_t *)((char *)d->results->digests + digests_bytes);
	return TRY(m, cuMemAlloc_v2, &d->leaves,
		   d->n_max * CHUNK_LEAVES_MAX * sizeof(struct digest));
}

static void digester_close(struct dev_digester *d)
{
	if (!d)
		return;
	if (enter(d->memory, NULL) == 0) {
		if (d->stream) {
			cu.cuStreamSynchronize(d->stream);
			cu.cuStreamDestroy_v2(d->stream);
		}
		if (d->done)
			cu.cuEventDestroy_v2(d->done);
		if (d->leaves)
			cu.cuMemFree_v2(d->leaves);
		if (d->results)
			cu.cuMemFreeHost(d->results);
	}
	free(d);
}
DEFINE_AUTO(struct dev_digester *, digester_close)

static int digester_open(struct dev_memory *m, uint64_t bytes_max, struct dev_digester **ret,
			 struct brumate_error *err)
{
	auto_(digester_close) struct dev_digester *d = calloc(1, sizeof(*d));

	if (!d)
		return brumate_fail(err, ENOMEM, "%s: %m", m->uuid);
	d->memory = m;
	d->n_max = (bytes_max + CHUNK_BYTES_MAX - 1) / CHUNK_BYTES_MAX;
	int r = enter(m, err);
	if (r == 0)
		r = load_kernels(d, err);
	if (r == 0)
		r = make_room(d, err);
	if (r == 0)
		r = TRY(m, cuStreamCreate, &d->stream, CU_STREAM_NON_BLOCKING);
	if (r == 0)
		r = TRY(m, cuEventCreate, &d->done,
			CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING);
	if (r == 0)
		*ret = take_ptr(&d);
	return r;
}

static int launch(struct dev_digester *d, uint64_t n, unsigned threads, void **params,
		  struct brumate_error *err)
{
	return TRY(d->memory, cuLaunchKernel, d->digest_fn, (unsigned)((n + threads - 1) / threads),
		   1, 1, threads, 1, 1, 0, d->stream, params, NULL);
}

/* Launches the kernels for @n chunks of @len_bytes each, from @first on. */
static int launch_chunks(struct dev_digester *d, size_t first, uint64_t n, uint64_t len_bytes,
			 char *prefix, struct brumate_error *err)
{
	CUdeviceptr leaves = d->leaves + first * CHUNK_LEAVES_MAX * sizeof(struct digest);
	CUdeviceptr prefix_at = (uintptr_t)prefix, to = (uintptr_t)&d->results->digests[first];
	CUdeviceptr nonzero = 0;
	uint32_t words = (uint32_t)chunk_leaves(len_bytes) * DIGEST_WORDS,
		 prefix_words = PREFIX_BYTES / 4;
	void *params[] = { &leaves, &n, &words, &prefix_at, &prefix_words, &to, &nonzero };

	memset(prefix, 0, PREFIX_BYTES);
	memcpy(prefix, "brumate-chunk-1", sizeof("brumate-chunk-1"));
	for (int i = 0; i < 8; i++)
		prefix[16 + i] = (char)(len_bytes >> 8 * i);
	return launch(d, n, CHUNK_THREADS, params, err);
}

static int digest_chunks(struct dev_digester *d, uint64_t at, uint64_t bytes,
			 struct brumate_error *err)
{
	uint64_t whole = bytes / CHUNK_BYTES_MAX, rest = bytes % CHUNK_BYTES_MAX;
	uint64_t n_leaves = bytes / CHUNK_LEAF_BYTES;
	CUdeviceptr prefix = 0, nonzero = (uintptr_t)d->nonzero;
	uint32_t words = LEAF_WORDS, prefix_words = 0;
	void *params[] = { &at, &n_leaves, &words, &prefix, &prefix_words, &d->leaves, &nonzero };
	int r = enter(d->memory, err);

	if (r < 0)
		return r;
	if (!bytes || bytes % CHUNK_LEAF_BYTES || whole + !!rest > d->n_max)
		return brumate_fail(err, EINVAL, "digests of %llu bytes",
				    (unsigned long long)bytes);
	d->n = (size_t)(whole + !!rest);
	memset(d->nonzero, 0, d->n * sizeof(*d->nonzero));
	r = launch(d, n_leaves, LEAF_THREADS, params, err);
	if (r == 0 && whole)
		r = launch_chunks(d, 0, whole, CHUNK_BYTES_MAX, d->results->prefixes[0], err);
	if (r == 0 && rest)
		r = launch_chunks(d, (size_t)whole, 1, rest, d->results->prefixes[1], err);
	return r < 0 ? r : TRY(d->memory, cuEventRecord, d->done, d->stream);
}

/* On one stream, so that the GPU switches to us once for both. */
static int copy_and_digest(struct dev_digester *d, uint64_t at, uint64_t from, uint64_t bytes,
			   struct brumate_error *err)
{
	int r = enter(d->memory, err);

	if (r == 0)
		r = TRY(d->memory, cuMemcpyDtoDAsync_v2, at, from, bytes, d->stream);
	return r < 0 ? r : digest_chunks(d, at, bytes, err);
}

static int digest_wait(struct dev_digester *d, struct digest *ret, bool *ret_zero,
		       struct brumate_error *err)
{
	int r = enter(d->memory, err);

	if (r == 0)
		r = TRY(d->memory, cuEventSynchronize, d->done);
	if (r < 0)
		return r;
	memcpy(ret, d->results->digests, d->n * sizeof(*ret));
	for (size_t i = 0; i < d->n; i++)
		ret_zero[i] = !d->nonzero[i];
	return 0;
}

const struct dev_memory_ops dev_cuda_memory = {
	.open = memory_open,
	.close = memory_close,
	.node = memory_node,
	.free_bytes = memory_free_bytes,
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
	.zero = lane_zero,
	.wait = lane_wait,
	.digester_open = digester_open,
	.digester_close = digester_close,
	.digest = digest_chunks,
	.copy_and_digest = copy_and_digest,
	.digest_wait = digest_wait,
};
