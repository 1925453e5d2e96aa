// SPDX-License-Identifier: MIT
/* Takes device memory (--mib, or all but --leave-mib of what is free), says so, and waits. */
#include <unistd.h>

#include "cuda.h"
#include "program.h"

static size_t bytes_wanted(const struct options *options)
{
	size_t free_bytes, total_bytes, leave_bytes = options->leave_mib << 20;

	if (!options->leave_mib)
		return options->mib << 20;
	CHECKED(cuMemGetInfo_v2(&free_bytes, &total_bytes));
	if (free_bytes <= leave_bytes)
		die("only %zu MiB are free, %zu were to be left", free_bytes >> 20,
		    options->leave_mib);
	return (free_bytes - leave_bytes) >> 21 << 21;
}

int main(int argc, char **argv)
{
	struct options options = { .mib = 1024, .chunk_mib = 1 };
	struct gpu gpu;
	CUdeviceptr memory;

	options_parse(&options, argc, argv, "hog [--mib 1024 | --leave-mib N] [--gpu 0]");
	gpu_open(&gpu, options.gpu);
	size_t bytes = bytes_wanted(&options);
	CHECKED(cuMemAlloc_v2(&memory, bytes));
	say("ready pid %d holds %zu MiB", (int)getpid(), bytes >> 20);
	for (;;)
		pause();
}
