// SPDX-License-Identifier: MIT
/*
 * The driver's own jobs: processes that the driver saves together, as one file that all were given at their start tells
 * it. Looks at /proc alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct gpu_vendor;

/** Which job of the driver a process is in. */
struct driver_job {
	uint64_t device, inode; /* of its file */
	const char *missing;	/* text for a process of such a job, borrowed; NULL: none */
};

/**
 * Finds the job of @vendor's driver that @pid was started in, by the environment that it began with. 1: *ret; 0: none. -errno: it should be
 * in one, or that is unknown, and the file is not found (-ENOENT: nobody holds it open any more where it should be).
 */
int driver_job_find(struct driver_job *ret, const struct gpu_vendor *vendor, pid_t pid);

/** The vendor's tool that makes the file of such a job (path, owned), in the PATH that @environment (of a program, ends
 * with NULL) has, if it is of a version that can; NULL: there is none. */
char *driver_job_find_tool(const struct gpu_vendor *vendor, char *const *environment);

bool driver_job_is_same(const struct driver_job *a, const struct driver_job *b);
