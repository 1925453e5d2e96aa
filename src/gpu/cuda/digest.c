// SPDX-License-Identifier: MIT
/*
 * Digests of device memory, by the kernels of digest.cu on a stream of their own. Results are written
 * by the GPU to pinned host memory: a copy of them would wait behind the bulk copies of other streams.
 */
#include "gpu/cuda/memory.h"
#include "gpu/cuda/private.h"
#include "base/symbols.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

enum {
	LEAF_THREADS = 128,
	CHUNK_THREADS = 64,
	PREFIX_BYTES = 24, /* before the leaf digests: docs/image-format.md */
};

#define DIGEST_CALLS(X)        \
	X(cuMemAlloc_v2)       \
	X(cuMemFree_v2)        \
	X(cuMemHostAlloc)      \
	X(cuMemFreeHost)       \
	X(cuModuleLoadData)    \
	X(cuModuleGetFunction) \
	X(cuLaunchKernel)      \
	X(cuStreamCreate)      \
	X(cuStreamDestroy_v2)  \
	X(cuStreamSynchronize) \
	X(cuEventCreate)       \
	X(cuEventRecord)       \
	X(cuEventSynchronize)  \
	X(cuEventDestroy_v2)

static struct {
#define X(name) __typeof__(name) *name;
	DIGEST_CALLS(X)
#undef X
} cu;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static const char *missing;

/* In pinned host memory, which the GPU reaches at the same address. */
struct results {
	char prefixes[2][PREFIX_BYTES]; /* of whole chunks, of the last */
	char pad[16];
	struct digest digests[]; /* then a word for each chunk: not zero */
};

struct dev_digester {
	struct dev_memory *memory;
	CUfunction leaves_fn, chunks_fn;
	CUstream stream;
	CUevent done;
	CUdeviceptr leaves;
	struct results *results;
	uint32_t *nonzero; /* behind the digests */
	size_t n_max, n;   /* chunks */
};

DEFINE_AUTO(struct dev_digester *, cuda_digester_close)

static void resolve(void)
{
	static const struct symbol calls[] = {
#define X(name) { #name, (void **)&cu.name },
		DIGEST_CALLS(X)
#undef X
	};

	missing = symbols_resolve(cuda_library(), calls, sizeof(calls) / sizeof(calls[0]));
}

static int load_kernels(struct dev_digester *d, struct brumate_error *err)
{
	struct dev_memory *m = d->memory;
	int r = 0;

	pthread_mutex_lock(&loading);
	if (!m->digests)
		r = TRY(m, cuModuleLoadData, &m->digests, cuda_digest_ptx);
	pthread_mutex_unlock(&loading);
	if (r == 0)
		r = TRY(m, cuModuleGetFunction, &d->leaves_fn, m->digests, "brumate_digest_leaves");
	if (r == 0)
		r = TRY(m, cuModuleGetFunction, &d->chunks_fn, m->digests, "brumate_digest_chunks");
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

void cuda_digester_close(struct dev_digester *d)
{
	if (!d)
		return;
	if (cuda_enter(d->memory, NULL) == 0) {
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

int cuda_digester_open(struct dev_memory *m, uint64_t bytes_max, struct dev_digester **ret,
		       struct brumate_error *err)
{
	auto_(cuda_digester_close) struct dev_digester *d = calloc(1, sizeof(*d));

	if (!d)
		return brumate_fail(err, ENOMEM, "%s: %m", m->uuid);
	d->memory = m;
	d->n_max = (bytes_max + CHUNK_BYTES_MAX - 1) / CHUNK_BYTES_MAX;
	pthread_once(&once, resolve);
	if (missing)
		return brumate_fail(err, EOPNOTSUPP, "NVIDIA driver is too old: it has no %s",
				    missing);
	int r = cuda_enter(m, err);
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

static int launch(struct dev_digester *d, CUfunction fn, uint64_t n, unsigned threads,
		  void **params, struct brumate_error *err)
{
	return TRY(d->memory, cuLaunchKernel, fn, (unsigned)((n + threads - 1) / threads), 1, 1,
		   threads, 1, 1, 0, d->stream, params, NULL);
}

/* The chunks from @first on, of @len_bytes each. */
static int launch_chunks(struct dev_digester *d, size_t first, uint64_t n, uint64_t len_bytes,
			 char *prefix, struct brumate_error *err)
{
	CUdeviceptr leaves = d->leaves + first * CHUNK_LEAVES_MAX * sizeof(struct digest);
	CUdeviceptr prefix_at = (uintptr_t)prefix, to = (uintptr_t)&d->results->digests[first];
	uint32_t n_leaves = (uint32_t)chunk_leaves(len_bytes);
	void *params[] = { &leaves, &n, &n_leaves, &prefix_at, &to };

	memset(prefix, 0, PREFIX_BYTES);
	memcpy(prefix, "brumate-chunk-1", sizeof("brumate-chunk-1"));
	for (int i = 0; i < 8; i++)
		prefix[16 + i] = (char)(len_bytes >> 8 * i);
	return launch(d, d->chunks_fn, n, CHUNK_THREADS, params, err);
}

int cuda_digest(struct dev_digester *d, uint64_t at, uint64_t bytes, struct brumate_error *err)
{
	uint64_t whole = bytes / CHUNK_BYTES_MAX, rest = bytes % CHUNK_BYTES_MAX;
	uint64_t n_leaves = bytes / CHUNK_LEAF_BYTES;
	CUdeviceptr nonzero = (uintptr_t)d->nonzero;
	void *params[] = { &at, &n_leaves, &d->leaves, &nonzero };
	int r = cuda_enter(d->memory, err);

	if (r < 0)
		return r;
	if (!bytes || bytes % CHUNK_LEAF_BYTES || whole + !!rest > d->n_max)
		return brumate_fail(err, EINVAL, "digests of %llu bytes",
				    (unsigned long long)bytes);
	d->n = (size_t)(whole + !!rest);
	memset(d->nonzero, 0, d->n * sizeof(*d->nonzero));
	r = launch(d, d->leaves_fn, n_leaves, LEAF_THREADS, params, err);
	if (r == 0 && whole)
		r = launch_chunks(d, 0, whole, CHUNK_BYTES_MAX, d->results->prefixes[0], err);
	if (r == 0 && rest)
		r = launch_chunks(d, (size_t)whole, 1, rest, d->results->prefixes[1], err);
	return r < 0 ? r : TRY(d->memory, cuEventRecord, d->done, d->stream);
}

int cuda_digest_wait(struct dev_digester *d, struct digest *ret, bool *ret_zero,
		     struct brumate_error *err)
{
	int r = cuda_enter(d->memory, err);

	if (r == 0)
		r = TRY(d->memory, cuEventSynchronize, d->done);
	if (r < 0)
		return r;
	memcpy(ret, d->results->digests, d->n * sizeof(*ret));
	for (size_t i = 0; i < d->n; i++)
		ret_zero[i] = !d->nonzero[i];
	return 0;
}
