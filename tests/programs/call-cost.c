// SPDX-License-Identifier: MIT
/*
 * What brumate's library adds to a call of the driver, told by one process: the same call goes by turns the
 * way of every program (dlsym, so into the library where it is loaded) and straight to the driver's own
 * function, which is read from the driver's table of symbols. Clocks, the place in memory and on the
 * machine, and whatever else differs from process to process, are the same for both. Without the library
 * the two are one function: what is told then is how far the measurement can be trusted.
 *
 * Prints "entry library" or "entry driver", then for each kind of call "cost NAME PLAIN OURS LOW HIGH", in
 * µs a call: the median of the driver alone; that with the median of what the library adds; and the bounds
 * within which that is in 96 of 100 runs.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda.h"
#include "interpose/elf-object.h"
#include "program.h"

/* Of 200 numbers the 86th and the 115th have the median between them, 96 times of 100. */
enum { PAIRS = 200, LOW = 86 - 1, HIGH = 115 - 1 };

/* A driver takes about a thousand launches before one has to wait. */
enum { BLOCK = 2000, WITH_ROOM = 200 };

struct way {
	__typeof__(cuLaunchKernel) *launch;
	__typeof__(cuEventQuery) *query;
};

static struct gpu gpu;
static CUdeviceptr word;
static CUstream stream;
static CUevent event;

static void *own(const struct elf_object *driver, const char *name)
{
	void *function = elf_function(driver, name);

	if (!function)
		die("the driver has no %s", name);
	return function;
}

static struct way straight(void)
{
	struct elf_object driver;
	struct way way;

	if (!elf_find_soname(&driver, "libcuda.so.1"))
		die("no libcuda.so.1 is loaded");
	way.launch = (__typeof__(way.launch))own(&driver, "cuLaunchKernel");
	way.query = (__typeof__(way.query))own(&driver, "cuEventQuery");
	return way;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static uint64_t launches(const struct way *way, int n)
{
	uint32_t value = 1;
	void *params[] = { &word, &value };
	uint64_t start = now_ns();
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < n; i++)
		r |= way->launch(gpu.store_u32, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
	start = now_ns() - start;
	if (r)
		die("launches failed: %d", (int)r);
	return start;
}

/* Into a queue that is full: each waits for an earlier one to end, as in a program bound by its launches. */
static uint64_t full_queue(const struct way *way)
{
	return launches(way, BLOCK);
}

/* The call alone. */
static uint64_t with_room(const struct way *way)
{
	uint64_t ns = 0;

	for (int i = 0; i < BLOCK; i += WITH_ROOM) {
		CHECKED(cuStreamSynchronize(stream));
		ns += launches(way, WITH_ROOM);
	}
	return ns;
}

static uint64_t queries(const struct way *way)
{
	uint64_t start = now_ns();
	CUresult r = CUDA_SUCCESS;

	for (int i = 0; i < BLOCK; i++)
		r |= way->query(event);
	start = now_ns() - start;
	if (r)
		die("queries failed: %d", (int)r);
	return start;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void measure(const char *name, uint64_t (*block)(const struct way *way),
		    const struct way *plain, const struct way *ours)
{
	double alone[PAIRS], added[PAIRS], median;

	block(plain); /* the first time is another thing, and fills the queue */
	block(ours);
	for (int i = 0; i < PAIRS; i++) {
		/* Who comes first has what the other left behind. */
		double first = (double)block(i % 2 ? ours : plain);
		double second = (double)block(i % 2 ? plain : ours);

		alone[i] = (i % 2 ? second : first) / BLOCK / 1000;
		added[i] = (i % 2 ? first - second : second - first) / BLOCK / 1000;
	}
	CHECKED(cuStreamSynchronize(stream));
	qsort(alone, PAIRS, sizeof(*alone), by_value);
	qsort(added, PAIRS, sizeof(*added), by_value);
	median = alone[PAIRS / 2];
	say("cost %s %.5f %.5f %.5f %.5f", name, median, median + added[PAIRS / 2],
	    median + added[LOW], median + added[HIGH]);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1, .chunk_mib = 1 };
	struct way plain, ours;

	options_parse(&options, argc, argv, "call-cost [--gpu 0]");
	gpu_open(&gpu, options.gpu);
	CHECKED(cuMemAlloc_v2(&word, sizeof(uint32_t)));
	CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECKED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	plain = straight();
	ours = (struct way){ cuda.cuLaunchKernel, cuda.cuEventQuery };
	say("entry %s", memcmp(&plain, &ours, sizeof(plain)) ? "library" : "driver");
	measure("launch", full_queue, &plain, &ours);
	measure("launch-with-room", with_room, &plain, &ours);
	measure("event-query", queries, &plain, &ours);
	return 0;
}
