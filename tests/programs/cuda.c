// SPDX-License-Identifier: MIT
/* Loading the driver, opening a GPU, and the arrays with a closed-form sum; see cuda.h. */
#include "cuda.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"

#define FACTOR	2654435761ull
#define THREADS 256u
#define BLOCKS	1024u

struct cuda cuda;

void die(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	fputs("ERR ", stdout);
	vprintf(fmt, ap);
	putchar('\n');
	fflush(stdout);
	va_end(ap);
	_exit(1);
}

void cuda_load(void)
{
	static const struct {
		const char *name;
		void *slot;
	} calls[] = {
#define X(sym) { #sym, &cuda.sym },
		CUDA_CALLS(X)
#undef X
	};

	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		die("load the driver: %s", dlerror());

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		void *fn = dlsym(library, calls[i].name);
		if (!fn)
			die("load the driver: it has no %s", calls[i].name);
		memcpy(calls[i].slot, &fn, sizeof(fn));
	}
}

void cuda_checked(CUresult result, const char *call, const char *file, int line)
{
	const char *name = "unknown error";

	if (result == CUDA_SUCCESS)
		return;
	cuda.cuGetErrorName(result, &name);
	die("%s:%d: %s: %s (%d)", file, line, call, name, (int)result);
}

void gpu_load_kernels(struct gpu *gpu)
{
	CHECKED(cuModuleLoadData(&gpu->kernels, kernels_ptx));
	CHECKED(cuModuleGetFunction(&gpu->fill_u64, gpu->kernels, "brumate_fill_u64"));
	CHECKED(cuModuleGetFunction(&gpu->random_u64, gpu->kernels, "brumate_random_u64"));
	CHECKED(cuModuleGetFunction(&gpu->add_u64, gpu->kernels, "brumate_add_u64"));
	CHECKED(cuModuleGetFunction(&gpu->add_array_u64, gpu->kernels, "brumate_add_array_u64"));
	CHECKED(cuModuleGetFunction(&gpu->sum_u64, gpu->kernels, "brumate_sum_u64"));
	CHECKED(cuModuleGetFunction(&gpu->inc_u32, gpu->kernels, "brumate_inc_u32"));
	CHECKED(cuModuleGetFunction(&gpu->copy_u32, gpu->kernels, "brumate_copy_u32"));
	CHECKED(cuModuleGetFunction(&gpu->spin_ns, gpu->kernels, "brumate_spin_ns"));
	CHECKED(cuModuleGetFunction(&gpu->store_u32, gpu->kernels, "brumate_store_u32"));
	CHECKED(cuModuleGetFunction(&gpu->await_u32, gpu->kernels, "brumate_await_u32"));
}

void gpu_open(struct gpu *ret, int ordinal)
{
	int count = 0;

	if (!cuda.cuInit)
		cuda_load();
	CHECKED(cuInit(0));
	CHECKED(cuDeviceGetCount(&count));
	if (ordinal >= count)
		die("GPU %d wanted, there are %d", ordinal, count);

	*ret = (struct gpu){ 0 };
	CHECKED(cuDeviceGet(&ret->device, ordinal));
	CHECKED(cuDevicePrimaryCtxRetain(&ret->ctx, ret->device));
	CHECKED(cuCtxSetCurrent(ret->ctx));
	gpu_load_kernels(ret);
}

void gpu_uuid(const struct gpu *gpu, char ret[static GPU_UUID_TEXT_BYTES])
{
	CUuuid uuid;
	size_t at = (size_t)snprintf(ret, GPU_UUID_TEXT_BYTES, "GPU-");

	CHECKED(cuDeviceGetUuid_v2(&uuid, gpu->device));
	for (int i = 0; i < 16; i++) {
		const char *dash = i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
		at += (size_t)snprintf(ret + at, GPU_UUID_TEXT_BYTES - at, "%s%02x", dash,
				       (unsigned char)uuid.bytes[i]);
	}
}

void gpu_launch(CUfunction fn, unsigned int blocks, CUstream stream, void **params)
{
	CHECKED(cuLaunchKernel(fn, blocks, 1, 1, blocks == 1 ? 1 : THREADS, 1, 1, 0, stream, params,
			       NULL));
}

static void fill(struct array *array)
{
	for (uint64_t i = 0; i < array->n_chunks; i++) {
		uint64_t base = i * array->words;
		LAUNCH(array->gpu->fill_u64, BLOCKS, NULL, &array->chunks[i], &array->words, &base);
	}
	CHECKED(cuMemAlloc_v2(&array->sum, sizeof(uint64_t)));
	/* To wait for the context would end what another thread captures. */
	CHECKED(cuStreamSynchronize(NULL));
}

static void prepare(struct array *ret, const struct gpu *gpu, size_t n_chunks, size_t chunk_bytes)
{
	*ret = (struct array){ .gpu = gpu,
			       .n_chunks = n_chunks,
			       .words = chunk_bytes / sizeof(uint64_t),
			       .chunks = calloc(n_chunks, sizeof(CUdeviceptr)) };
	if (!ret->chunks)
		die("no memory for %zu chunks", n_chunks);
}

void array_alloc(struct array *ret, const struct gpu *gpu, size_t n_chunks, size_t chunk_bytes)
{
	prepare(ret, gpu, n_chunks, chunk_bytes);
	for (size_t i = 0; i < n_chunks; i++)
		CHECKED(cuMemAlloc_v2(&ret->chunks[i], chunk_bytes));
	fill(ret);
}

void array_free(struct array *array)
{
	for (size_t i = 0; i < array->n_chunks; i++)
		CHECKED(cuMemFree_v2(array->chunks[i]));
	CHECKED(cuMemFree_v2(array->sum));
	free(array->chunks);
}

void array_over(struct array *ret, const struct gpu *gpu, CUdeviceptr memory, size_t bytes)
{
	prepare(ret, gpu, 1, bytes);
	ret->chunks[0] = memory;
	fill(ret);
}

void array_add(struct array *array, CUstream stream)
{
	uint64_t one = 1;

	for (size_t i = 0; i < array->n_chunks; i++)
		LAUNCH(array->gpu->add_u64, BLOCKS, stream, &array->chunks[i], &array->words, &one);
	array->added++;
}

uint64_t array_sum(uint64_t base, uint64_t words)
{
	uint64_t indices = (uint64_t)((unsigned __int128)words * (words - 1) / 2);

	return (base * words + indices) * FACTOR;
}

/* The sum of all words. */
static uint64_t expected(const struct array *array)
{
	uint64_t words = array->words * array->n_chunks;

	return array_sum(0, words) + words * array->added;
}

bool array_check(const struct array *array, CUstream stream)
{
	uint64_t sum = 0, words = array->words;
	CUdeviceptr out = array->sum;

	CHECKED(cuMemsetD8Async(out, 0, sizeof(sum), stream));
	for (size_t i = 0; i < array->n_chunks; i++)
		LAUNCH(array->gpu->sum_u64, BLOCKS, stream, &array->chunks[i], &words, &out);
	CHECKED(cuStreamSynchronize(stream));
	CHECKED(cuMemcpyDtoH_v2(&sum, out, sizeof(sum)));
	return sum == expected(array);
}
