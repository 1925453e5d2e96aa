// SPDX-License-Identifier: MIT
/*
 * What brumate's library adds to a call of the driver, told by one process: the same call goes by turns the
 * way of every program (dlsym, so into the library where it is loaded) and straight to the driver's own
 * function, which is read from the driver's table of symbols. Clocks, the place in memory and on the
 * machine, and whatever else differs from process to process, are the same for both. Without the library
 * the two are one function: what is told then is how far the measurement can be trusted. An allocation is
 * compared with the driver's virtual memory calls for as much, in whole granules, at addresses that are kept,
 * waiting as a free does for what may still use the memory.
 *
 * Prints "entry library" or "entry driver", with allocations also "memory library" or "memory driver", then for each kind of call "cost NAME PLAIN OURS LOW HIGH", in
 * µs a call: the median of the driver alone; that with the median of what the library adds; and the bounds
 * within which that is in 96 of 100 runs.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"
#include "interpose/entry/elf-object.h"
#include "program.h"

#define MIB ((size_t)1 << 20)

/* How often a pair is timed, and which of the results, by size, is the lower bound of their median 96 times of
 * 100; the upper is as far from the other end. */
struct runs {
	size_t pairs, low;
};

enum { PAIRS_MAX = 1000 };

static const struct runs many = { PAIRS_MAX, 468 - 1 }, some = { 80, 31 - 1 }, few = { 24, 7 - 1 };

/* Short, so that both of a pair find the machine as it is in the same millisecond. A driver takes about a
 * thousand launches before one has to wait. */
enum { BLOCK = 200, FULL = 2000, KEPT_MAX = 100 };

/* So many allocations of a size, and then as many frees. */
struct churn {
	size_t bytes, kept;
};

struct way {
	__typeof__(cuLaunchKernel) *launch;
	__typeof__(cuEventQuery) *query;
	void (*churn)(const struct churn *churn);
};

/* The driver's own functions. */
static struct {
	__typeof__(cuMemCreate) *create;
	__typeof__(cuMemMap) *map;
	__typeof__(cuMemSetAccess) *set_access;
	__typeof__(cuMemRelease) *release;
	__typeof__(cuMemUnmap) *unmap;
	__typeof__(cuMemRetainAllocationHandle) *retain;
	__typeof__(cuCtxSynchronize) *synchronize;
} own;

static struct gpu gpu;
static size_t granule;
static CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				    .requestedHandleTypes =
					    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
				    .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
static CUdeviceptr word, addresses[KEPT_MAX];
static CUstream stream;
static CUevent event;

static void *find(const struct elf_object *driver, const char *name)
{
	void *function = elf_function(driver, name);

	if (!function)
		die("the driver has no %s", name);
	return function;
}

static void must(CUresult r, const char *what)
{
	if (r)
		die("%s failed: %d", what, (int)r);
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- what is timed ---- */

static uint64_t launches(const struct way *way, int n)
{
	uint32_t value = 1;
	void *params[] = { &word, &value };
	uint64_t start = now_ns();
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < n; i++)
		r |= way->launch(gpu.store_u32, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
	start = now_ns() - start;
	must(r, "a launch");
	return start;
}

/* Into a queue that is full: each waits for an earlier one to end, as in a program bound by its launches. */
static uint64_t full_queue(const struct way *way, const void *arg)
{
	(void)arg;
	return launches(way, BLOCK);
}

/* The call alone. */
static uint64_t with_room(const struct way *way, const void *arg)
{
	(void)arg;
	CHECKED(cuStreamSynchronize(stream));
	return launches(way, BLOCK);
}

static uint64_t queries(const struct way *way, const void *arg)
{
	uint64_t start = now_ns();
	CUresult r = CUDA_SUCCESS;

	(void)arg;
	for (int i = 0; i < BLOCK; i++)
		r |= way->query(event);
	start = now_ns() - start;
	must(r, "a query");
	return start;
}

static size_t whole(size_t bytes)
{
	return (bytes + granule - 1) / granule * granule;
}

static void by_virtual_memory(const struct churn *churn)
{
	size_t bytes = whole(churn->bytes);
	CUmemAccessDesc desc = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < churn->kept; i++) {
		must(own.create(&handle, bytes, &prop, 0), "cuMemCreate");
		r |= own.map(addresses[i], bytes, 0, handle, 0);
		r |= own.set_access(addresses[i], bytes, &desc, 1);
		r |= own.release(handle);
	}
	for (size_t i = 0; i < churn->kept; i++) {
		r |= own.synchronize();
		r |= own.unmap(addresses[i], bytes);
	}
	must(r, "the driver's virtual memory");
}

static void by_allocation(const struct churn *churn)
{
	CUdeviceptr memory[KEPT_MAX];

	for (size_t i = 0; i < churn->kept; i++)
		CHECKED(cuMemAlloc_v2(&memory[i], churn->bytes));
	for (size_t i = 0; i < churn->kept; i++)
		CHECKED(cuMemFree_v2(memory[i]));
}

static uint64_t allocations(const struct way *way, const void *arg)
{
	const struct churn *churn = arg;
	uint64_t start = now_ns();

	way->churn(churn);
	return (now_ns() - start) * BLOCK / churn->kept;
}

/* ---- and how ---- */

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(const char *name, struct runs runs,
		    uint64_t (*block)(const struct way *way, const void *arg), const void *arg,
		    const struct way *plain, const struct way *ours)
{
	static double alone[PAIRS_MAX], added[PAIRS_MAX];
	const size_t n = runs.pairs;

	block(plain, arg); /* the first time is another thing */
	block(ours, arg);
	for (size_t i = 0; i < n; i++) {
		/* Who comes first has what the other left behind. */
		double first = (double)block(i % 2 ? ours : plain, arg);
		double second = (double)block(i % 2 ? plain : ours, arg);

		alone[i] = (i % 2 ? second : first) / BLOCK / 1000;
		added[i] = (i % 2 ? first - second : second - first) / BLOCK / 1000;
	}
	CHECKED(cuStreamSynchronize(stream));
	qsort(alone, n, sizeof(*alone), by_value);
	qsort(added, n, sizeof(*added), by_value);
	double median = alone[n / 2];
	say("cost %s %.5f %.5f %.5f %.5f", name, median, median + added[n / 2],
	    median + added[runs.low], median + added[n - 1 - runs.low]);
}

static void measure_launches(const struct way *plain, const struct way *ours)
{
	CHECKED(cuMemAlloc_v2(&word, sizeof(uint32_t)));
	CHECKED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	launches(plain, FULL);
	measure("launch", many, full_queue, NULL, plain, ours);
	measure("launch-with-room", many, with_room, NULL, plain, ours);
	measure("event-query", many, queries, NULL, plain, ours);
}

static void measure_churn(struct churn churn, size_t free_bytes, const struct way *plain,
			  const struct way *ours)
{
	char name[64];

	while (churn.kept > 1 && churn.kept * churn.bytes > free_bytes / 4)
		churn.kept--;
	for (size_t i = 0; i < churn.kept; i++)
		CHECKED(cuMemAddressReserve(&addresses[i], whole(churn.bytes), 0, 0, 0));
	snprintf(name, sizeof(name), "malloc-free-%zu-KiB", churn.bytes >> 10);
	measure(name, churn.bytes < 512 * MIB ? some : few, allocations, &churn, plain, ours);
	for (size_t i = 0; i < churn.kept; i++)
		CHECKED(cuMemAddressFree(addresses[i], whole(churn.bytes)));
}

/* Whose memory cuMemAlloc gives: the driver knows no handle of its own. */
static void tell_whose_memory(void)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr memory;

	CHECKED(cuMemAlloc_v2(&memory, granule));
	bool virtual = own.retain(&handle, (void *)(uintptr_t)memory) == CUDA_SUCCESS;
	if (virtual)
		must(own.release(handle), "cuMemRelease");
	CHECKED(cuMemFree_v2(memory));
	say("memory %s", virtual ? "library" : "driver");
}

static void measure_allocations(const struct way *plain, const struct way *ours)
{
	static const struct churn churns[] = { { 64 << 10, KEPT_MAX }, { MIB, KEPT_MAX },
					       { 2 * MIB, KEPT_MAX },  { 16 * MIB, KEPT_MAX },
					       { 512 * MIB, 10 },      { 1024 * MIB, 10 } };
	size_t free_bytes, total_bytes;

	CHECKED(cuMemGetInfo_v2(&free_bytes, &total_bytes));
	prop.location.id = gpu.device;
	CHECKED(cuMemGetAllocationGranularity(&granule, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	tell_whose_memory();
	for (size_t i = 0; i < sizeof(churns) / sizeof(*churns); i++)
		measure_churn(churns[i], free_bytes, plain, ours);
}

static struct way straight(void)
{
	struct elf_object driver;
	struct way way = { .churn = by_virtual_memory };

	if (!elf_find_soname(&driver, "libcuda.so.1"))
		die("no libcuda.so.1 is loaded");
#define FIND(to, name) (to) = (__typeof__(to))find(&driver, name)
	FIND(way.launch, "cuLaunchKernel");
	FIND(way.query, "cuEventQuery");
	FIND(own.create, "cuMemCreate");
	FIND(own.map, "cuMemMap");
	FIND(own.set_access, "cuMemSetAccess");
	FIND(own.release, "cuMemRelease");
	FIND(own.unmap, "cuMemUnmap");
	FIND(own.retain, "cuMemRetainAllocationHandle");
	FIND(own.synchronize, "cuCtxSynchronize");
#undef FIND
	return way;
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1 };
	struct way plain, ours;

	options_parse(&options, argc, argv, "call-cost launches|allocations [--gpu 0]");
	bool allocates = options.word && !strcmp(options.word, "allocations");
	if (!allocates && (!options.word || strcmp(options.word, "launches")))
		die("launches or allocations?");
	gpu_open(&gpu, options.gpu);
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	plain = straight();
	ours = (struct way){ cuda.cuLaunchKernel, cuda.cuEventQuery, by_allocation };
	say("entry %s", plain.launch == ours.launch ? "driver" : "library");
	if (allocates)
		measure_allocations(&plain, &ours);
	else
		measure_launches(&plain, &ours);
	return 0;
}
