// SPDX-License-Identifier: MIT
/*
 * What is done to the servers of a node next, and why: a decision on what is seen of them now. Keeps nothing, does nothing; pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "job/job.h"

struct served {
	char id[JOB_ID_BYTES], name[JOB_NAME_BYTES];
	bool is_running, is_suspended;
	bool is_pinned;
	bool shares;   /* a job of `share`, no server */
	bool waits;    /* a server that has not found room for a while */
	uint64_t gpus; /* that it is on, or comes back to, a bit each; UINT64_MAX: not known */
	int priority;
	uint64_t idle_after_ms; /* after which it leaves; 0: as all */
	uint64_t idle_ms;	/* since it used a GPU; UINT64_MAX: not known */
	uint64_t resident_ms;	/* since it came back, as far as that was seen */
	uint64_t asleep_ms; /* since it was suspended; UINT64_MAX: since before it was first seen */
	uint64_t copy_bytes; /* of host memory that its copy takes */
	uint64_t pause_ms;   /* until what failed is tried again */
};

enum { DECISION_REASON_BYTES = 192 };

struct decision {
	ssize_t at; /* index of the server that is to be suspended; -1: none */
	char reason[DECISION_REASON_BYTES];
};

/** The next server to be suspended: of those that were idle for long enough the one of the lowest priority, then the one that was
 * idle the longest. */
struct decision serve_decide(const struct served *all, size_t n, uint64_t idle_after_ms);

/** The next server that is to go to disk, as copies of those that are suspended take more than @memory_bytes (0: any amount): of the
 * lowest priority, then the one that was suspended the longest time ago. */
struct decision serve_decide_save(const struct served *all, size_t n, uint64_t memory_bytes);

struct turn_decision {
	ssize_t leaves, comes; /* indices; -1: none. Both: one for the other */
	char reason[DECISION_REASON_BYTES];
};

/**
 * What is next among those of @all that share GPUs, each of which has them for @slice_ms at a time and as a whole. One leaves for a server that
 * waits; of two that are on a GPU at once the later one; and for the one that waits the longest those that have
 * had their time. Nobody comes to GPUs for which another one has waited for longer.
 */
struct turn_decision share_decide(const struct served *all, size_t n, uint64_t slice_ms);
