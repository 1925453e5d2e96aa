// SPDX-License-Identifier: MIT
/*
 * What the operations of a job came to, added up: counts.json in its directory, written by its shim when an operation
 * ends. It goes with the record. An operation whose shim was killed is not in it.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "job/target.h"

/** How one operation ended. Strings borrowed. */
struct job_outcome {
	const char *kind;		 /* "suspend" … */
	int result;			 /* 0, or the -errno that it failed with */
	double seconds;			 /* that it took */
	uint64_t gpu_bytes, image_bytes; /* device memory moved; bytes written or read */
	/* The moments, by the clock of clock_boot_ns(), between which the job stood still. 0: it did not stop, or goes
	 * on standing still. */
	uint64_t stopped_ns, released_ns;
};

/** Adds @outcome to the counts of @j. They are for monitoring alone: what cannot be written is lost. */
void job_count(const struct target *t, const struct job_outcome *outcome);

/**
 * The counts (owned), an empty object where there are none, NULL without memory: for each kind of operation "done",
 * "failed" and "cancelled", and of those done "seconds", "standstill_s", "gpu_bytes", "image_bytes" and "last_ms" (when
 * the last ended, in milliseconds since 1970). A job that was suspended stands still until it is resumed:
 * "still_since_ns", by the clock of clock_boot_ns(), next to the kinds.
 */
json_t *job_counts(const struct target *t);

/** The same for a checkpoint of a pod: its counts are in the directory "pods" next to the jobs, and stay. */
void pod_count(const struct job_outcome *outcome);

/** What job_counts() tells, of all checkpoints of pods that were asked for here. */
json_t *pod_counts(void);
