// SPDX-License-Identifier: MIT
/* Pieces of device memory that the test process makes, fills, keeps by fds and looks at again. */
#pragma once

#include "node.h"
#include "base/chunk.h"
#include "client/transfer-session.h"

#include <sys/mman.h>

#define MIB (1ull << 20)

enum { CHUNK = CHUNK_BYTES_MAX };

struct driver {
	__typeof__(cuInit) *init;
	__typeof__(cuDeviceGetCount) *count;
	__typeof__(cuDevicePrimaryCtxRetain) *retain;
	__typeof__(cuCtxSetCurrent) *set;
	__typeof__(cuMemAddressReserve) *reserve;
	__typeof__(cuMemAddressFree) *unreserve;
	__typeof__(cuMemCreate) *create;
	__typeof__(cuMemRelease) *release;
	__typeof__(cuMemMap) *map;
	__typeof__(cuMemUnmap) *unmap;
	__typeof__(cuMemSetAccess) *allow;
	__typeof__(cuMemExportToShareableHandle) *export;
	__typeof__(cuMemImportFromShareableHandle) *import;
	__typeof__(cuMemcpyHtoD_v2) *write_to;
	__typeof__(cuMemcpyDtoH_v2) *read_from;
};

static struct driver cu;

static inline void driver_open(void)
{
	auto_free char *path = path_find_helper("sim/libcuda.so.1");
	void *lib = dlopen(path, RTLD_NOW);
	CUcontext ctx;

	CHECK(lib);
	cu.init = target_symbol(lib, "cuInit");
	cu.count = target_symbol(lib, "cuDeviceGetCount");
	cu.retain = target_symbol(lib, "cuDevicePrimaryCtxRetain");
	cu.set = target_symbol(lib, "cuCtxSetCurrent");
	cu.reserve = target_symbol(lib, "cuMemAddressReserve");
	cu.unreserve = target_symbol(lib, "cuMemAddressFree");
	cu.create = target_symbol(lib, "cuMemCreate");
	cu.release = target_symbol(lib, "cuMemRelease");
	cu.map = target_symbol(lib, "cuMemMap");
	cu.unmap = target_symbol(lib, "cuMemUnmap");
	cu.allow = target_symbol(lib, "cuMemSetAccess");
	cu.export = target_symbol(lib, "cuMemExportToShareableHandle");
	cu.import = target_symbol(lib, "cuMemImportFromShareableHandle");
	cu.write_to = target_symbol(lib, "cuMemcpyHtoD_v2");
	cu.read_from = target_symbol(lib, "cuMemcpyDtoH_v2");
	CHECK(cu.init(0) == CUDA_SUCCESS && cu.retain(&ctx, 0) == CUDA_SUCCESS &&
	      cu.set(ctx) == CUDA_SUCCESS);
}

/* What a piece holds: each of its words differs from those beside it and of other pieces. */
static inline void pattern(uint64_t *buf, uint64_t bytes, uint64_t seed)
{
	for (uint64_t i = 0; i < bytes / sizeof(*buf); i++)
		buf[i] = (seed + 1) * 0x9e3779b97f4a7c15ull ^ i;
}

static inline CUdeviceptr map_handle(CUmemGenericAllocationHandle handle, uint64_t bytes, int gpu)
{
	const CUmemAccessDesc access = { { CU_MEM_LOCATION_TYPE_DEVICE, gpu },
					 CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr at;

	CHECK(cu.reserve(&at, bytes, 0, 0, 0) == CUDA_SUCCESS);
	CHECK(cu.map(at, bytes, 0, handle, 0) == CUDA_SUCCESS);
	CHECK(cu.release(handle) == CUDA_SUCCESS);
	CHECK(cu.allow(at, bytes, &access, 1) == CUDA_SUCCESS);
	return at;
}

static inline void unmap_handle(CUdeviceptr at, uint64_t bytes)
{
	CHECK(cu.unmap(at, bytes) == CUDA_SUCCESS && cu.unreserve(at, bytes) == CUDA_SUCCESS);
}

/* An fd that alone keeps @bytes of memory on @gpu, filled by @seed. */
static inline int piece_make(uint64_t bytes, int gpu, uint64_t seed)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, gpu },
	};
	CUmemGenericAllocationHandle handle;
	auto_free uint64_t *buf = malloc(bytes);
	int fd;

	CHECK(cu.create(&handle, bytes, &prop, 0) == CUDA_SUCCESS);
	CHECK(cu.export(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
	CUdeviceptr at = map_handle(handle, bytes, gpu);
	pattern(buf, bytes, seed);
	CHECK(cu.write_to(at, buf, bytes) == CUDA_SUCCESS);
	unmap_handle(at, bytes);
	return fd;
}

static inline void piece_check(int fd, uint64_t bytes, int gpu, uint64_t seed)
{
	CUmemGenericAllocationHandle handle;
	auto_free uint64_t *buf = malloc(bytes), *want = malloc(bytes);

	CHECK(cu.import(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
	      CUDA_SUCCESS);
	CUdeviceptr at = map_handle(handle, bytes, gpu);
	CHECK(cu.read_from(buf, at, bytes) == CUDA_SUCCESS);
	unmap_handle(at, bytes);
	pattern(want, bytes, seed);
	CHECK(memcmp(buf, want, bytes) == 0);
}

/* Some pieces, their fds, a copy of them, and how that is made. */
struct set {
	struct transfer_request request;
	struct device_piece *pieces;
	int *gpus, *fds;
	size_t n;
	struct host_copy copy;
	struct transfer_spared spared; /* of the last transfer */
	bool compared;
};

static char uuids[2][DEV_UUID_TEXT_BYTES];

/* @n pieces of @bytes(i), on GPUs in turn. */
static inline struct set set_make(size_t n, uint64_t (*bytes)(size_t i), int n_gpus)
{
	struct set s = { .n = n };

	s.pieces = calloc(n, sizeof(*s.pieces));
	s.gpus = calloc(n, sizeof(*s.gpus));
	s.fds = calloc(n, sizeof(*s.fds));
	CHECK(s.pieces && s.gpus && s.fds);
	s.request = (struct transfer_request){ .pieces = s.pieces, .n = n };
	for (size_t i = 0; i < n; i++) {
		s.gpus[i] = (int)i % n_gpus;
		s.pieces[i].len_bytes = bytes(i);
		strcpy(s.pieces[i].gpu, uuids[s.gpus[i]]);
		s.fds[i] = piece_make(bytes(i), s.gpus[i], i);
	}
	return s;
}

static inline void set_check_device(const struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		piece_check(s->fds[i], s->pieces[i].len_bytes, s->gpus[i], i);
}

static inline void copy_read(const struct host_copy *c, uint64_t offset, void *buf, uint64_t bytes)
{
	while (bytes) {
		uint64_t inside = offset % c->segment_bytes, here = c->segment_bytes - inside;
		int fd = c->segments[offset / c->segment_bytes];

		here = here < bytes ? here : bytes;
		char *at = mmap(NULL, c->segment_bytes, PROT_READ, MAP_SHARED, fd, 0);
		CHECK(at != MAP_FAILED);
		memcpy(buf, at + inside, here);
		munmap(at, c->segment_bytes);
		buf = (char *)buf + here;
		offset += here;
		bytes -= here;
	}
}

static inline void set_check_copy(const struct set *s)
{
	CHECK(s->copy.total_bytes == host_copy_offset(s->pieces, s->n));
	for (size_t i = 0; i < s->n; i++) {
		uint64_t bytes = s->pieces[i].len_bytes;
		auto_free uint64_t *buf = malloc(bytes), *want = malloc(bytes);

		copy_read(&s->copy, host_copy_offset(s->pieces, i), buf, bytes);
		pattern(want, bytes, i);
		CHECK(memcmp(buf, want, bytes) == 0);
	}
}

static inline void set_close_fds(struct set *s)
{
	for (size_t i = 0; i < s->n; i++)
		cleanup_close(&s->fds[i]);
}

static inline void set_free(struct set *s)
{
	set_close_fds(s);
	host_copy_fini(&s->copy);
	free(s->pieces);
	free(s->gpus);
	free(s->fds);
}

static struct broker_client b = BROKER_CLIENT_EMPTY;

static inline void must(int r, const struct brumate_error *err)
{
	if (r < 0)
		fprintf(stderr, "%s\n", err->text);
	CHECK(r >= 0);
}

static inline struct transfer_client *session(void)
{
	struct transfer_client *s;
	struct brumate_error err;

	must(transfer_client_open(&s, &b, &err), &err);
	return s;
}

static inline void out(struct transfer_client *s, struct set *set)
{
	struct brumate_error err;

	must(transfer_client_out(s, &set->request, set->fds, &set->copy, &set->spared, &err), &err);
}

static inline void in(struct transfer_client *s, struct set *set)
{
	struct brumate_error err;

	must(transfer_client_in(s, &set->request, &set->copy, set->fds, &set->compared, &err),
	     &err);
}

/* The device memory of piece @i from @offset on is filled, with zeros where @seed is 0. */
static inline void piece_write(const struct set *s, size_t i, uint64_t offset, uint64_t bytes,
			       uint64_t seed)
{
	uint64_t len = s->pieces[i].len_bytes;
	CUmemGenericAllocationHandle handle;
	auto_free uint64_t *buf = calloc(1, bytes);

	if (seed)
		pattern(buf, bytes, seed);
	CHECK(cu.import(&handle, (void *)(intptr_t)s->fds[i],
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
	CUdeviceptr at = map_handle(handle, len, s->gpus[i]);
	CHECK(cu.write_to(at + offset, buf, bytes) == CUDA_SUCCESS);
	unmap_handle(at, len);
}

static inline void piece_read(const struct set *s, size_t i, void *buf)
{
	uint64_t len = s->pieces[i].len_bytes;
	CUmemGenericAllocationHandle handle;

	CHECK(cu.import(&handle, (void *)(intptr_t)s->fds[i],
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_SUCCESS);
	CUdeviceptr at = map_handle(handle, len, s->gpus[i]);
	CHECK(cu.read_from(buf, at, len) == CUDA_SUCCESS);
	unmap_handle(at, len);
}

/* The host copy has what the device has, and its digests are of that. */
static inline void set_check_digests(const struct set *s)
{
	const struct digest *digests = digest_table_digests(s->copy.digests);

	CHECK(digest_table_is_whole(s->copy.digests));
	for (size_t i = 0; i < s->n; i++) {
		uint64_t bytes = s->pieces[i].len_bytes, offset = host_copy_offset(s->pieces, i);
		auto_free char *buf = malloc(bytes), *want = malloc(bytes);

		copy_read(&s->copy, offset, buf, bytes);
		piece_read(s, i, want);
		CHECK(memcmp(buf, want, bytes) == 0);
		for (uint64_t at = 0; at < bytes; at += CHUNK) {
			struct digest digest;

			CHECK(chunk_digest(&digest, want + at, CHUNK) == 0);
			CHECK(!memcmp(&digest, &digests[(offset + at) / CHUNK], sizeof(digest)));
		}
	}
}

/* Brings the copy up to date; what that has spared. */
static inline struct transfer_spared update(struct set *set)
{
	auto_(transfer_client_close) struct transfer_client *s = session();
	struct brumate_error err;

	set->request.digests = true;
	must(transfer_client_update(s, &set->request, set->fds, &set->copy, &set->spared, &err),
	     &err);
	return set->spared;
}

static inline struct transfer_spared full(struct set *set)
{
	auto_(transfer_client_close) struct transfer_client *s = session();

	host_copy_fini(&set->copy);
	set->request.digests = true;
	out(s, set);
	return set->spared;
}

static inline uint64_t granule(size_t i)
{
	return 2 * MIB;
}

static inline uint64_t odd(size_t i)
{
	return (2 * (i % 5) + 1) * 2 * MIB;
}

static inline uint64_t large(size_t i)
{
	return 270 * MIB;
}

static inline void learn_gpus(void)
{
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n;

	CHECK(broker_client_gpus(&b, gpus, &n, NULL) == 0 && n == 2);
	for (int i = 0; i < 2; i++)
		strcpy(uuids[i], gpus[i].uuid);
}

static inline void broker_start(void)
{
	struct brumate_error err;

	must(broker_client_open(&b, &(struct gpu_kind){ .simulated = true }, &err), &err);
	learn_gpus();
}

/* What Info says of the pool. */
static inline int64_t pool_bytes(const char *what)
{
	auto_json json_t *reply = NULL;

	CHECK(wire_call(&b.wire, "io.brumate.broker.Info", NULL, NULL, 0, NULL, NULL, &reply,
			deadline_in_ms(30000), NULL) == 0);
	json_t *bytes = json_object_get(json_object_get(reply, "pool"), what);
	CHECK(json_is_integer(bytes));
	return json_integer_value(bytes);
}
