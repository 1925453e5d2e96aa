// SPDX-License-Identifier: MIT
/* Shared by the files of the cuda backend: NVML, which only supplements what the driver says. */
#pragma once

#include "gpu/gpu.h"

/** What a release of the driver added. @api: the driver's API version, for drivers that do not state their release.
 * See docs/driver-behaviour.md. */
struct cuda_release {
	uint32_t feature;
	const char *release;
	int api;
};
enum { CUDA_RELEASES = 5 };
extern const struct cuda_release cuda_releases[CUDA_RELEASES];

/** The driver's library, after dev_cuda was opened. */
void *cuda_library(void);

/** Loads and initialises NVML. @library: NULL for the usual name. If that fails, the functions below return nothing. */
void nvml_open(const char *library);

/** Version of the driver as text, "" if unknown. */
void nvml_driver_version(char *ret, size_t room);

/** Fills in memory and MIG mode of the GPU with gpu->uuid; leaves out what NVML does not know. */
void nvml_fill_gpu(struct dev_gpu *gpu);

/** Adds the GPUs and bytes that @pid uses. */
void nvml_fill_process(pid_t pid, struct dev_process *process);

/** The backend. */
extern const struct dev_backend dev_cuda;

/** Copies and digests; gpu/copy.h. */
extern const struct dev_memory_ops dev_cuda_memory;

/** The kernels of digest.cu. */
extern const char cuda_digest_ptx[];
