// SPDX-License-Identifier: MIT
/* Inside of copying device memory: copy.c has the thread and what it does, copy-ahead.c what is used of it
 * before its end. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/copy.h"
#include "client/transfer.h"

struct copy {
	struct op *op;
	bool in, load;	      /* into device memory; and before that out of the store */
	uint64_t *places;     /* of the image's regions in the copy that is loaded */
	bool unverified;      /* what was loaded, if the GPU does not compare it */
	bool compared;	      /* by the GPU */
	bool forced;	      /* nobody may cancel it */
	bool update;	      /* out: @copy is what was kept, to be brought up to date */
	uint64_t saved_bytes; /* out: of the copy, handed to the store already */
	int save_r;	      /* why that ended */
	struct brumate_error save_err;
	struct transfer_spared spared;
	pthread_t thread;
	bool started;
	struct device_piece *pieces;
	size_t n;
	uint64_t total_bytes;
	int *fds;	       /* of device memory: borrowed on the way out, ours on the way in */
	struct host_copy copy; /* made here */
	const struct host_copy *from; /* in: this one, or the one made here */
	atomic_uint_fast64_t done_bytes;
	atomic_bool stop;
	uint64_t start_ns, moving_ns, end_ns;
	int r;
	struct brumate_error err;

	/* For who uses what is filled before the end. */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	int *early; /* fds of all pieces, ours */
	size_t n_filled;
	bool made, ended, stale; /* made: device memory for all pieces is there */
	enum { AHEAD_FREE, AHEAD_USED, AHEAD_NO_MORE } ahead;
};

/** A transfer_filled_fn: pieces that are filled; @arg is the copy. */
void copy_note_filled(void *arg, const int *fds, size_t n_filled);
/** What was told of an attempt that failed is void: waits until whoever used it has let go of it. */
void copy_void_early(struct copy *c);
void copy_drop_early(struct copy *c);
