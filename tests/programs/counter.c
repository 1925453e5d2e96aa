// SPDX-License-Identifier: MIT
/*
 * The demo's program: holds device memory whose every word is accounted for. Each step adds 1 to all
 * of it and compares the sum of all with the one known in closed form, so one wrong byte shows.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda.h"
#include "program.h"

static struct gpu gpu;
static struct array memory;

static bool step(void *state, uint64_t n)
{
	array_add(&memory, NULL);
	return array_check(&memory, NULL);
}

static void prefix(void *state)
{
	char uuid[GPU_UUID_TEXT_BYTES];

	gpu_uuid(&gpu, uuid);
	printf("pid %d gpu %s ", (int)getpid(), uuid);
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1024, .chunk_mib = 64, .interval_ms = 100 };

	options_parse(
		&options, argc, argv,
		"counter [--mib 1024] [--chunk-mib 64] [--steps N] [--interval-ms 100] [--gpu 0]");
	if (options.mib % options.chunk_mib) {
		fprintf(stderr, "counter: --mib must be a multiple of --chunk-mib\n");
		return 2;
	}
	gpu_open(&gpu, options.gpu);
	array_alloc(&memory, &gpu, options.mib / options.chunk_mib, options.chunk_mib << 20);
	steps_run(&options, step, prefix, NULL);
	return 0;
}
