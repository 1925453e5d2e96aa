// SPDX-License-Identifier: MIT
/* Shared by the files of the amd backend: what the kernel tells of GPUs and of the processes that use them. */
#pragma once

#include "gpu/gpu.h"

/** The GPUs below @sysfs ("/sys"), in the order of the kernel's topology. -ENODEV: there is none. */
int amd_read_gpus(const char *sysfs, struct dev_gpu *ret, size_t max, size_t *ret_n,
		  struct brumate_error *err);

/** What @pid uses; DEV_STATE_NONE if the kernel does not know it as a client. */
void amd_read_process(const char *sysfs, pid_t pid, struct dev_process *ret);

/** The version of the driver: its own, or the kernel's, whose part it is then. */
void amd_read_version(const char *sysfs, char *ret, size_t room);

/** The backend. Nothing of it was run on hardware by us. */
extern const struct dev_backend dev_amd;
