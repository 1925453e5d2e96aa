// SPDX-License-Identifier: MIT
/*
 * A host copy, as the broker makes and reads it: segments that become ready, populated and pinned, by
 * workers of their own, in the order in which they are wanted, while copies already run into those that
 * are. What nobody wants, being all zero, never gets a page: it reads as zeros. One rule holds
 * always: nothing but what was saved is ever read from a host copy.
 */
#pragma once

#include "broker/gpus.h"
#include "base/seal.h"
#include "base/workers.h"

#include <pthread.h>

enum host_part_state {
	HOST_PART_UNUSED,    /* nobody has wanted it yet */
	HOST_PART_SKIPPED,   /* the same, and zeros that belong there were not written */
	HOST_PART_PREPARING, /* a worker makes it ready */
	HOST_PART_SCRUBBING, /* the same; zeros were not written to it, so all of it is made zero first */
	HOST_PART_ZERO,	   /* it is ready, and all of it was zero then */
	HOST_PART_READY,   /* it is ready, and holds anything */
	HOST_PART_SETTLED, /* it is leased, and nobody ever wanted it */
};

/* One segment's part of a host copy. */
struct host_part {
	struct work work;
	struct segments *host;
	struct segment *segment;    /* another one may come in its place until it is wanted */
	enum host_part_state state; /* under the host copy's lock */
};

struct segments {
	struct gpus *gpus;
	uint64_t total_bytes, segment_bytes;
	size_t n_segments;
	struct host_part *parts;
	bool needs_ring; /* some segment is not pinned, nor will be */
	bool spilled;	 /* some segment is on a disk; then these are of use */
	struct seal_disk_key key;
	int key_fd;
	enum host_use {
		HOST_FOR_COPY, /* by copies: what is never wanted reads as zeros in the end */
		HOST_FOR_HOLDER, /* by its holder, and zero until then: pages that are not there are the cheapest */
		HOST_AS_IS, /* by its holder, who writes all that is read: it may hold what it held */
	} use;		    /* by whom it is written */
	int wake_fd; /* eventfd, borrowed: told when all is ready or some of it failed; -1: none */
	struct work_queue *workers;

	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t changed;
	size_t n_ready;
	bool stopped;
	struct brumate_error err; /* why it is stopped, if it failed */
};

/** Takes memory from the pool. What is for a holder is made ready in the background. @nodes: memory node
 * wanted for each segment, or NULL. */
int segments_new(struct segments **ret, struct gpus *gpus, uint64_t total_bytes, const int *nodes,
		 enum host_use use, int wake_fd, struct brumate_error *err);
/** A copy that others hold. @fds are borrowed: of the segments, and of the key where some are on a disk. */
int segments_adopt(struct segments **ret, struct gpus *gpus, uint64_t total_bytes,
		   uint64_t segment_bytes, const int *fds, size_t n, struct brumate_error *err);
/** Lets the segments go. Accepts NULL. */
void segments_free(struct segments *h);

/** Has these segments made ready, in this order; what is ready, or told to be, already stays so. */
void segments_want(struct segments *h, size_t first, size_t end);
/** Whether zeros in segment @i need not be written: it has no pages yet, or will be exchanged for one that
 * has none. @now: they are not written. Nothing of the segment was wanted before. */
bool segments_skips_zeros(struct segments *h, size_t i, bool now);
/** Wants segment @i. Returns 0 when it is ready; 1 if it is not and @block is false; <0 if the copy is
 * stopped, or failed. @ret_zero (may be NULL): all of it was zero when it became ready. */
int segments_get(struct segments *h, size_t i, bool block, struct segment **ret, bool *ret_zero,
		 struct brumate_error *err);
/** Returns 1 when all segments are ready, 0 when not yet, <0 when one failed. */
int segments_state(struct segments *h, struct brumate_error *err);
/** How many descriptors a holder gets: of all segments, and perhaps of their key. */
size_t segments_fds(const struct segments *h);
/** Those (owned) from number @first to before @end. Nothing is written to these segments any more. */
int segments_lease(struct segments *h, size_t first, size_t end, int *ret_fds,
		   struct brumate_error *err);
/** Makes whoever waits give up. */
void segments_stop(struct segments *h);
