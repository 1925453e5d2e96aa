// SPDX-License-Identifier: MIT
/*
 * The segments of a host copy, as the broker makes and reads it. Workers of their own populate and pin them in the
 * order in which they are wanted, while copies already use those that are ready. A segment that is never wanted, as
 * it is all zero, never gets pages: it reads as zeros. One rule holds always: nothing is read from a host copy that
 * was not saved in it.
 */
#pragma once

#include "broker/gpus.h"
#include "base/seal.h"
#include "base/workers.h"

#include <pthread.h>

enum host_part_state {
	HOST_PART_UNUSED,    /* not wanted yet */
	HOST_PART_SKIPPED,   /* not wanted yet, and its zeros were not written */
	HOST_PART_PREPARING, /* a worker makes it ready */
	HOST_PART_SCRUBBING, /* a worker makes it ready; its zeros were not written, so it is zeroed first */
	HOST_PART_ZERO,	   /* ready, and was all zero at that time */
	HOST_PART_READY,   /* ready, and may hold anything */
	HOST_PART_SETTLED, /* leased, and was never wanted */
};

/* One segment's part of a host copy. */
struct host_part {
	struct work work;
	struct segments *host;
	struct segment *segment;    /* may be exchanged for another one until it is wanted */
	enum host_part_state state; /* under the host copy's lock */
};

struct segments {
	struct gpus *gpus;
	uint64_t total_bytes, segment_bytes;
	size_t n_segments;
	struct host_part *parts;
	bool needs_ring; /* some segment is not pinned, and will not be */
	bool sparse; /* its segments are blank until it is known which are needed: segments_settle() */
	bool spilled; /* some segment is on a disk; the next two are valid */
	struct seal_disk_key key;
	int key_fd;
	struct work_queue *workers;

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	bool stopped;
	struct brumate_error err; /* the cause, if it was stopped by a failure */
};

/** Takes memory from the pool, for copies: what is never wanted reads as zeros. @nodes: memory node wanted for each segment,
 * or NULL. */
int segments_new(struct segments **ret, struct gpus *gpus, uint64_t total_bytes, const int *nodes,
		 struct brumate_error *err);
/** Makes one that takes no memory yet. What is wanted before segments_settle() is in memory, or the
 * copy fails. */
int segments_new_sparse(struct segments **ret, struct gpus *gpus, uint64_t total_bytes,
			const int *nodes, struct brumate_error *err);
/** Takes memory, or else room on the disk, for those segments of a sparse copy that are @needed; the others read as
 * zeros. None was wanted yet. Errors as for pool_take(). */
int segments_settle(struct segments *h, const bool *needed, struct brumate_error *err);
/** A copy that others hold. @fds are borrowed: of the segments, and of the key if some are on a disk. */
int segments_adopt(struct segments **ret, struct gpus *gpus, uint64_t total_bytes,
		   uint64_t segment_bytes, const int *fds, size_t n, struct brumate_error *err);
/** Releases the segments. Accepts NULL. */
void segments_free(struct segments *h);

/** How many segments of a copy that others hold have no pages: those of @needed, or of all if that is NULL. */
size_t segments_count_empty(const struct segments *h, const bool *needed);
/** Requests that these segments are made ready, in this order. Segments that are ready or requested already are
 * skipped. */
void segments_want(struct segments *h, size_t first, size_t end);
/** Whether zeros in segment @i need not be written: it has no pages yet, or will be exchanged for one without. @now:
 * they are skipped. Nothing of the segment was wanted before. */
bool segments_skips_zeros(struct segments *h, size_t i, bool now);
/** Requests segment @i. Returns 0 when it is ready; 1 if it is not and @block is false; <0 if the copy is stopped or
 * failed. @ret_zero (may be NULL): all of it was zero when it became ready. */
int segments_get(struct segments *h, size_t i, bool block, struct segment **ret, bool *ret_zero,
		 struct brumate_error *err);
/** How many descriptors a holder gets: of all segments, and of their key if there is one. */
size_t segments_fds(const struct segments *h);
/** The descriptors (owned) from number @first to before @end. These segments are not written any more. */
int segments_lease(struct segments *h, size_t first, size_t end, int *ret_fds,
		   struct brumate_error *err);
/** Makes all waiters give up. */
void segments_stop(struct segments *h);
