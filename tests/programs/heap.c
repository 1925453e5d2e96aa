// SPDX-License-Identifier: MIT
/*
 * The counter with a thread that allocates and frees host memory without a pause. All threads have one arena, and each
 * of its calls asks the kernel: so at any moment that thread most likely holds the lock of the C library's allocator.
 */
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

#include "cuda.h"
#include "program.h"

enum { BLOCK_BYTES = 100 << 10 };

static struct gpu gpu;
static struct array memory;

static void *allocate(void *arg)
{
	for (;;) {
		volatile char *block = malloc(BLOCK_BYTES);

		if (!block)
			die("no memory");
		block[0] = 1;
		free((void *)block);
	}
	return arg;
}

static bool step(void *state, uint64_t n)
{
	array_add(&memory, NULL);
	return array_check(&memory, NULL);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 32, .chunk_mib = 16, .interval_ms = 20 };
	pthread_t thread;

	options_parse(&options, argc, argv,
		      "heap [--mib 32] [--chunk-mib 16] [--steps N] [--interval-ms 20]");
	if (!mallopt(M_ARENA_MAX, 1) || !mallopt(M_TRIM_THRESHOLD, 0) || !mallopt(M_TOP_PAD, 0))
		die("mallopt");
	gpu_open(&gpu, options.gpu);
	array_alloc(&memory, &gpu, options.mib / options.chunk_mib, options.chunk_mib << 20);
	if (pthread_create(&thread, NULL, allocate, NULL))
		die("no thread");
	steps_run(&options, step, NULL, NULL);
	return 0;
}
