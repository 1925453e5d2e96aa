// SPDX-License-Identifier: MIT
/*
 * A transfer and its lanes: what is shared by the threads that move pieces of device memory out to a host copy or in
 * from one. Each GPU of the transfer has a lane with three threads: one maps pieces, one copies what is mapped, and
 * one computes digests.
 *
 * Pieces are mapped at the same distances as in the host copy, so that one copy spans many small pieces.
 */
#pragma once

#include "broker/segments.h"
#include "wire/transfer-packets.h"

enum { LANE_DIGESTERS = 2 }; /* one computes while the results of the other are read */

struct lane_piece {
	uint64_t offset, len_bytes; /* position in the host copy */
	size_t lane;
	uint64_t lane_end; /* bytes of the lane's pieces up to the end of this one */
	int fd;
};

/* How far a thread of a lane has got. */
struct position {
	size_t piece;	/* index in the lane */
	uint64_t bytes; /* within the piece */
	uint64_t done;	/* total bytes of the lane's pieces before it */
};

struct lane {
	struct transfer *transfer;
	uint8_t uuid[DEV_UUID_BYTES];
	size_t *pieces; /* indexes in the transfer's pieces */
	size_t n_pieces;
	size_t n_mapped,
		n_unmapped; /* only the mapping thread uses them until all threads have ended */

	bool opened; /* this and the next three are under the transfer's lock */
	/* Of the lane's pieces, in their order: what the GPU may access, what has known digests, what is copied. */
	uint64_t usable_bytes, digested_bytes, copied_bytes;

	struct dev_memory *memory; /* set before the lane is opened, as are all below */
	struct dev_lane *queue;	   /* of copies */
	struct dev_digester *digesters[LANE_DIGESTERS];
	size_t n_digesters;
	uint64_t at; /* the address at which byte 0 of the host copy would be mapped */
	bool reserved;

	struct copier *copier; /* of the copying thread */
	struct segment *ring;  /* NULL: not needed, or no memory for one */

	pthread_t threads[3];
	size_t n_threads, n_active; /* of them; active ones under the transfer's lock */
};

enum transfer_state {
	TRANSFER_WAITING, /* pieces are mapped or allocated as far as possible */
	TRANSFER_RUNNING, /* the host copy is there; ends when no thread runs any more */
	TRANSFER_STOPPED, /* it failed, or was cancelled */
};

struct transfer {
	struct driver *driver;
	uint64_t done_before; /* driver calls of its part that had ended at the start */
	struct gpus *gpus;
	const struct dev_memory_ops *ops;
	uint32_t flags; /* of the layout */
	bool to_host;
	struct lane_piece *pieces;
	size_t n_pieces;
	uint64_t total_bytes;
	struct lane *lanes; /* one for each GPU */
	size_t n_lanes;
	int wake_fd; /* eventfd, borrowed: signalled when the transfer is done or has failed */

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	enum transfer_state state;
	struct segments *host;
	struct work_queue *workers; /* for copies within host memory */
	bool early;		    /* out: complete segments are reported at once */
	size_t n_given;		    /* pieces whose fd has arrived */
	size_t n_made;		    /* in: pieces that the GPU may write to */
	size_t n_filled;	    /* of the first pieces, those that are copied */
	size_t n_whole;		    /* out: of the first segments, those that are complete */
	size_t n_running;	    /* threads */
	size_t n_digested;	    /* lanes whose digests are all known, or cannot be */
	bool settled; /* out: no copy has to wait until the digests show which segments it needs */
	uint64_t done_bytes;
	uint64_t zero_bytes, same_bytes; /* of these, not copied */
	struct brumate_error err;

	struct digests *digests; /* NULL: none are known */
	struct stream
		*stream; /* in: the source, in place of a host copy; NULL: there is a host copy */
};

/* Piece @i of the lane. */
static inline struct lane_piece *lane_piece(const struct lane *l, size_t i)
{
	return &l->transfer->pieces[l->pieces[i]];
}

/* Whether piece @i + 1 of the lane follows piece @i without a gap. */
static inline bool lane_is_followed(const struct lane *l, size_t i)
{
	return i + 1 < l->n_pieces && lane_piece(l, i)->offset + lane_piece(l, i)->len_bytes ==
					      lane_piece(l, i + 1)->offset;
}

/** The position of @p in the host copy. */
static inline uint64_t lane_offset(const struct lane *l, const struct position *p)
{
	return lane_piece(l, p->piece)->offset + p->bytes;
}

void lane_advance(const struct lane *l, struct position *p, uint64_t bytes);

/** Under the lock: counts the pieces that are filled and the segments that are complete, and wakes the waiters of the
 * transfer if there are more. */
void lane_note_copied(struct transfer *t);

/** Waits until the lane is open, the copy has begun and the fds of @n_given pieces have arrived. Returns 0, or
 * -ECANCELED: the transfer is stopped. */
int lane_wait_turn(struct lane *l, size_t n_given);

/* The result of a search for bytes to work on. */
enum { LANE_DONE, LANE_FOUND, LANE_NOT_YET };

/** Finds bytes without a gap from @p to *limit, which is under the transfer's lock; with @block, waits for some.
 * Returns LANE_…, or -ECANCELED. */
int lane_find_run(struct lane *l, const struct position *p, const uint64_t *limit, bool block,
		  uint64_t most, uint64_t *ret_bytes);
