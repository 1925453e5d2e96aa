// SPDX-License-Identifier: MIT
/*
 * The jobs that share GPUs with one that needs room there, and may be asked to leave: those of `run --wake`, which come back
 * by themselves when they are asked for. The one that leaves is of the lowest priority, and of these the one that used the GPU
 * the longest time ago, where one whose memory is in host memory already counts as idle for twice as long: it has less to copy. One that has just come back, and is in use, stays for a while, so that two that are in use do not
 * wake each other in turn; and where two have done so, it stays for twice as long each time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/conf.h"
#include "job/job.h"

/** A job that may leave. */
struct neighbour {
	char id[JOB_ID_BYTES];
	long priority;
	uint64_t min_resident_ms; /* CONF_UNSET: as the configuration says of all */
	uint64_t gpu_bytes,
		kept_bytes;   /* what it has on GPUs, and of that in a copy in host memory */
	uint64_t idle_ms;     /* since it used the GPU */
	uint64_t resident_ms; /* since its last operation, as its resume is one */
	uint64_t cost_ms;     /* what that took */
	unsigned
		turns; /* for how often it and the job that asks have thrown each other out, in turn and just before */
};

/** Since when a running job has not used its GPU, as its agents tell, to within a second; UINT64_MAX: not known. */
uint64_t neighbour_idle_ms(const struct job *j);

/** How often it and another job have thrown each other out in turn, in the last minutes; 0: not often enough to speak of. */
unsigned neighbour_turns(const struct job *j);

/** The index of the one of @n that leaves for a job of @priority; -1: none may. Pure. */
int neighbours_choose(const struct neighbour *all, size_t n, long priority,
		      const struct brumate_conf *conf);

/**
 * Suspends one of them for @job, which needs its GPUs and has come to @priority by waiting, and says so in an event. Returns 1; 0: none may leave now; -errno:
 * those that may could not be suspended, and @err says why.
 */
int neighbours_make_room(const struct job *job, long priority, const struct brumate_conf *conf,
			 struct brumate_error *err);
