// SPDX-License-Identifier: MIT
/*
 * `brumate metrics`: jobs, operations and checkpoints in the text format of Prometheus. Counters are those that the
 * shims keep with the records, so they are of each job and go with it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/** What there is to tell. Borrowed. */
struct metrics {
	json_t *jobs;		 /* as List has them with counts; NULL: could not be looked at */
	json_t *checkpoints;	 /* as Checkpoints has them; NULL: the same */
	json_t *pods;		 /* the result of pod_counts(); NULL: without */
	bool names;		 /* names of jobs are printed as well as their ids */
	uint64_t boot_ns;	 /* now, by clock_boot_ns() */
	uint64_t prepared_bytes; /* host memory that is ready for copies */
	uint64_t store_bytes, store_free_bytes; /* of the file system of the store; 0: not known */
};

/** Writes everything. Pure. */
void metrics_print(const struct metrics *m, FILE *f);
