// SPDX-License-Identifier: MIT
/* Kinds of memory a single process holds on one GPU (or shares with it from the host). */
#include <stdlib.h>
#include <string.h>

#include "kinds.h"

#define MIB ((size_t)1 << 20)

static struct gpu gpu;
static struct array memory;

static bool step_memory(void *state, uint64_t n)
{
	array_add(&memory, NULL);
	return array_check(&memory, NULL);
}

static void setup_plain(const struct options *options)
{
	gpu_open(&gpu, options->gpu);
	array_alloc(&memory, &gpu, 1, options->mib * MIB);
}

static void setup_many(const struct options *options)
{
	gpu_open(&gpu, options->gpu);
	array_alloc(&memory, &gpu, (options->mib + 1) / 2, 2 * MIB);
}

/* A limit of its own for the stacks of kernels. */
enum { STACK_BYTES = 4096 };

static void setup_stacks(const struct options *options)
{
	setup_plain(options);
	CHECKED(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, STACK_BYTES));
}

static bool step_stacks(void *state, uint64_t n)
{
	size_t limit;

	CHECKED(cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE));
	return step_memory(state, n) && limit == STACK_BYTES;
}

/*
 * Memory that comes and goes: what lives from one step to the next changes place each time, and what is
 * freed leaves its addresses to what follows.
 */
enum { CHURN = 4 };
static struct {
	CUdeviceptr at;
	uint64_t words, base;
} churn[CHURN];
static CUdeviceptr churn_sum;

static void churn_take(unsigned int i, uint64_t n)
{
	CHECKED(cuMemAlloc_v2(&churn[i].at, (size_t)(2 + i % 2) * 2 * MIB));
	churn[i].words = (2 + i % 2) * 2 * MIB / sizeof(uint64_t);
	churn[i].base = n << 32 | (uint64_t)i << 28;
	LAUNCH(gpu.fill_u64, 64, NULL, &churn[i].at, &churn[i].words, &churn[i].base);
}

static bool churn_holds(unsigned int i)
{
	uint64_t sum = 0;

	CHECKED(cuMemsetD8Async(churn_sum, 0, sizeof(sum), NULL));
	LAUNCH(gpu.sum_u64, 64, NULL, &churn[i].at, &churn[i].words, &churn_sum);
	CHECKED(cuMemcpyDtoH_v2(&sum, churn_sum, sizeof(sum)));
	return sum == array_sum(churn[i].base, churn[i].words);
}

static void setup_churn(const struct options *options)
{
	gpu_open(&gpu, options->gpu);
	CHECKED(cuMemAlloc_v2(&churn_sum, sizeof(uint64_t)));
	for (unsigned int i = 0; i < CHURN; i++)
		churn_take(i, 0);
}

static bool step_churn(void *state, uint64_t n)
{
	bool right = true;

	for (unsigned int i = 0; i < CHURN; i++)
		right = churn_holds(i) && right;
	for (unsigned int i = 0; i < CHURN; i++)
		if (i != n % CHURN)
			CHECKED(cuMemFree_v2(churn[i].at));
	for (unsigned int i = 0; i < CHURN; i++)
		if (i != n % CHURN)
			churn_take(i, n);
	return right;
}

/* Stream-ordered memory: one piece stays, another is taken and given back at each step. */
static CUstream stream;

static void setup_async(const struct options *options)
{
	CUdeviceptr pool_memory;

	gpu_open(&gpu, options->gpu);
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECKED(cuMemAllocAsync(&pool_memory, options->mib * MIB, stream));
	CHECKED(cuStreamSynchronize(stream));
	array_over(&memory, &gpu, pool_memory, options->mib * MIB);
}

static bool step_async(void *state, uint64_t n)
{
	CUdeviceptr passing;

	CHECKED(cuMemAllocAsync(&passing, MIB, stream));
	CHECKED(cuMemsetD8Async(passing, (unsigned char)n, MIB, stream));
	array_add(&memory, stream);
	bool right = array_check(&memory, stream);
	CHECKED(cuMemFreeAsync(passing, stream));
	CHECKED(cuStreamSynchronize(stream));
	return right;
}

/* Host memory the GPU writes to: pinned by the driver, and registered by the program. */
static uint32_t *pinned, *registered;
static CUdeviceptr pinned_on_gpu, registered_on_gpu;
static uint64_t host_words;

static void setup_pinned(const struct options *options)
{
	size_t bytes = options->mib * MIB;

	gpu_open(&gpu, options->gpu);
	host_words = bytes / sizeof(uint32_t);
	CHECKED(cuMemHostAlloc((void **)&pinned, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
	registered = aligned_alloc(4096, bytes);
	if (!registered)
		die("no memory for %zu bytes", bytes);
	memset(pinned, 0, bytes);
	memset(registered, 0, bytes);
	CHECKED(cuMemHostRegister_v2(registered, bytes, CU_MEMHOSTREGISTER_DEVICEMAP));
	CHECKED(cuMemHostGetDevicePointer_v2(&pinned_on_gpu, pinned, 0));
	CHECKED(cuMemHostGetDevicePointer_v2(&registered_on_gpu, registered, 0));
}

static bool all_are(const uint32_t *words, uint64_t n, uint32_t value)
{
	for (uint64_t i = 0; i < n; i++)
		if (words[i] != value)
			return false;
	return true;
}

static bool step_pinned(void *state, uint64_t n)
{
	LAUNCH(gpu.inc_u32, 64, NULL, &pinned_on_gpu, &host_words);
	LAUNCH(gpu.inc_u32, 64, NULL, &registered_on_gpu, &host_words);
	CHECKED(cuCtxSynchronize());
	return all_are(pinned, host_words, (uint32_t)n) &&
	       all_are(registered, host_words, (uint32_t)n);
}

/* Managed memory, counted up by GPU and host in turn. What is said of it stays said. */
static uint32_t *managed;
static CUmemLocation preferred = { CU_MEM_LOCATION_TYPE_HOST, 0 };

static void setup_managed(const struct options *options)
{
	CUdeviceptr address;
	size_t bytes = options->mib * MIB;

	gpu_open(&gpu, options->gpu);
	CHECKED(cuMemAllocManaged(&address, bytes, CU_MEM_ATTACH_GLOBAL));
	managed = (uint32_t *)(uintptr_t)address;
	host_words = bytes / sizeof(uint32_t);
	memset(managed, 0, bytes);
	CHECKED(cuStreamAttachMemAsync(NULL, address, 0, CU_MEM_ATTACH_GLOBAL));
	CHECKED(cuMemAdvise_v2(address, bytes, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, preferred));
}

static bool is_as_said(CUdeviceptr address, size_t bytes)
{
	int type = 0;
	unsigned int is_managed = 0;

	CHECKED(cuMemRangeGetAttribute(&type, sizeof(type),
				       CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, address,
				       bytes));
	CHECKED(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
	return type == CU_MEM_LOCATION_TYPE_HOST && is_managed;
}

static bool step_managed(void *state, uint64_t n)
{
	CUdeviceptr address = (CUdeviceptr)(uintptr_t)managed;
	CUmemLocation there = { CU_MEM_LOCATION_TYPE_DEVICE, gpu.device };
	size_t bytes = host_words * sizeof(*managed);

	CHECKED(cuMemPrefetchAsync_v2(address, bytes, there, 0, NULL));
	if (!is_as_said(address, bytes))
		return false;
	LAUNCH(gpu.inc_u32, 64, NULL, &address, &host_words);
	CHECKED(cuCtxSynchronize());
	if (!all_are(managed, host_words, (uint32_t)(2 * n - 1)))
		return false;
	for (uint64_t i = 0; i < host_words; i++)
		managed[i]++;
	return true;
}

/* Virtual memory management: reserved, created with an exportable handle, mapped. */
static void setup_vmm(const struct options *options)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
		.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = options->gpu },
	};
	CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	size_t granule;

	gpu_open(&gpu, options->gpu);
	CHECKED(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	size_t bytes = (options->mib * MIB + granule - 1) / granule * granule;
	CHECKED(cuMemCreate(&handle, bytes, &prop, 0));
	CHECKED(cuMemAddressReserve(&address, bytes, 0, 0, 0));
	CHECKED(cuMemMap(address, bytes, 0, handle, 0));
	CHECKED(cuMemSetAccess(address, bytes, &access, 1));
	array_over(&memory, &gpu, address, bytes);
}

/* Host memory made the same way, which nobody else can have: both GPU and host reach it. */
static uint32_t *host_vmm;

static void setup_vmm_host(const struct options *options)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { .type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0 },
	};
	CUmemAccessDesc access[] = {
		{ prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
		{ { CU_MEM_LOCATION_TYPE_DEVICE, options->gpu },
		  CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
	};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr address;
	size_t granule;

	gpu_open(&gpu, options->gpu);
	CHECKED(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	size_t bytes = (options->mib * MIB + granule - 1) / granule * granule;
	CHECKED(cuMemAddressReserve(&address, bytes, 0, 0, 0));
	CHECKED(cuMemCreate(&handle, bytes, &prop, 0));
	CHECKED(cuMemMap(address, bytes, 0, handle, 0));
	CHECKED(cuMemRelease(handle));
	CHECKED(cuMemSetAccess(address, bytes, access, 2));
	host_vmm = (uint32_t *)(uintptr_t)address;
	host_words = bytes / sizeof(*host_vmm);
	memset(host_vmm, 0, bytes);
}

static bool step_vmm_host(void *state, uint64_t n)
{
	CUdeviceptr address = (CUdeviceptr)(uintptr_t)host_vmm;

	LAUNCH(gpu.inc_u32, 64, NULL, &address, &host_words);
	CHECKED(cuCtxSynchronize());
	return all_are(host_vmm, host_words, (uint32_t)n);
}

const struct kind memory_kinds[] = {
	{ "plain", "memory from cuMemAlloc", setup_plain, step_memory },
	{ "big-many", "many allocations of 2 MiB", setup_many, step_memory },
	{ "stacks", "a limit of its own for the stacks of kernels", setup_stacks, step_stacks },
	{ "churn", "memory that is freed and allocated again", setup_churn, step_churn },
	{ "async", "stream-ordered memory", setup_async, step_async },
	{ "pinned", "pinned and registered host memory", setup_pinned, step_pinned },
	{ "managed", "managed memory", setup_managed, step_managed },
	{ "vmm", "exportable memory, not exported", setup_vmm, step_memory },
	{ "vmm-host", "host memory by the virtual memory API", setup_vmm_host, step_vmm_host },
	{ NULL },
};
