// SPDX-License-Identifier: MIT
/* What the files of the cuda backend share: NVML, which only ever adds knowledge. */
#pragma once

#include "gpu/gpu.h"

/** What a release of the driver added. @api: the driver's number, for those that do not tell their release. See
 * docs/driver-behaviour.md. */
struct cuda_release {
	uint32_t feature;
	const char *release;
	int api;
};
enum { CUDA_RELEASES = 5 };
extern const struct cuda_release cuda_releases[CUDA_RELEASES];

/** The driver's library, once dev_cuda was opened. */
void *cuda_library(void);

/** Loads and initialises NVML. @library: NULL for the usual name. Without it the rest is empty. */
void nvml_open(const char *library);

/** Version of the driver as text, "" if unknown. */
void nvml_driver_version(char *ret, size_t room);

/** Fills memory and MIG mode of the GPU with gpu->uuid; leaves @gpu as it is where NVML cannot say. */
void nvml_fill_gpu(struct dev_gpu *gpu);

/** Adds the GPUs and bytes that @pid uses. */
void nvml_fill_process(pid_t pid, struct dev_process *process);

/** Copies and digests; gpu/copy.h. */
extern const struct dev_memory_ops dev_cuda_memory;

/** The kernels of digest.cu. */
extern const char cuda_digest_ptx[];
