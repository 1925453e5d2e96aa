// SPDX-License-Identifier: MIT
/*
 * A transfer, and its lanes: what the threads share that move pieces of device memory out to a host
 * copy or in from one. Each GPU of the transfer has a lane, which three threads share: one maps pieces,
 * one copies what is mapped, and one computes digests.
 *
 * Pieces are mapped at the same distances as they have in the host copy, so that a copy spans many small
 * ones.
 */
#pragma once

#include "broker/segments.h"
#include "wire/transfer-packets.h"

enum { LANE_DIGESTERS = 2 }; /* one computes while the results of the other are read */

struct lane_piece {
	uint64_t offset, len_bytes; /* in the host copy */
	size_t lane;
	uint64_t lane_end; /* bytes of the lane's pieces up to its end */
	int fd;
};

/* How far a thread of a lane is. */
struct position {
	size_t piece;	/* of the lane */
	uint64_t bytes; /* into it */
	uint64_t done;	/* of the lane's pieces */
};

struct lane {
	struct transfer *transfer;
	uint8_t uuid[DEV_UUID_BYTES];
	size_t *pieces; /* indexes */
	size_t n_pieces;
	size_t n_mapped, n_unmapped; /* by the mapping thread alone, until all have ended */

	bool opened; /* this and the next three are under the transfer's lock */
	/* Of the lane's pieces, in their order: what the GPU may read and write, whose digests are
	 * known, what is copied. */
	uint64_t usable_bytes, digested_bytes, copied_bytes;

	struct dev_memory *memory; /* set before the lane is opened, as is the rest */
	struct dev_lane *queue;	   /* of copies */
	struct dev_digester *digesters[LANE_DIGESTERS];
	size_t n_digesters;
	uint64_t at; /* where the host copy's byte 0 would be mapped */
	bool reserved;

	struct copier *copier; /* the copying thread's */
	struct segment *ring;  /* NULL: none is needed, or to be had */

	pthread_t threads[3];
	size_t n_threads, n_active; /* of them; active ones under the transfer's lock */
};

enum transfer_state {
	TRANSFER_WAITING, /* pieces are mapped or made as far as they can be */
	TRANSFER_RUNNING, /* the host copy is there; it is done when no thread runs any more */
	TRANSFER_STOPPED, /* it failed, or nobody wants it any more */
};

struct transfer {
	struct driver *driver;
	uint64_t done_before; /* by the driver, of its part, when the transfer began */
	struct gpus *gpus;
	const struct dev_memory_ops *ops;
	uint32_t flags; /* of the layout */
	bool to_host;
	struct lane_piece *pieces;
	size_t n_pieces;
	uint64_t total_bytes;
	struct lane *lanes; /* one for each GPU */
	size_t n_lanes;
	int wake_fd; /* eventfd, borrowed: told when all is done or has failed */

	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	enum transfer_state state;
	struct segments *host;
	struct work_queue *workers; /* for copies between host memory */
	bool early;		    /* out: segments that are whole are told of */
	size_t n_given;		    /* pieces whose fd is there */
	size_t n_made;		    /* in: pieces that the GPU may write to */
	size_t n_filled;	    /* of the first pieces, those that are copied */
	size_t n_whole;	  /* out: of the first segments, those that hold all they will hold */
	size_t n_running; /* threads */
	uint64_t done_bytes;
	uint64_t zero_bytes, same_bytes; /* of these, not copied */
	struct brumate_error err;

	struct digests *digests; /* what is known of them; NULL: nothing */
	struct stream *stream;	 /* in: what there is in place of a host copy; NULL: there is one */
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

/** Where @p is in the host copy. */
static inline uint64_t lane_offset(const struct lane *l, const struct position *p)
{
	return lane_piece(l, p->piece)->offset + p->bytes;
}

void lane_advance(const struct lane *l, struct position *p, uint64_t bytes);

/** Under the transfer's lock: how much of @p is copied, from its beginning. */
uint64_t lane_filled_bytes(const struct transfer *t, const struct lane_piece *p);

/** Under the lock: counts the pieces that are filled and the segments that are whole, and tells whoever waits for
 * the transfer if there are more. */
void lane_note_copied(struct transfer *t);

/** Waits until the lane is open, the copy has begun and the fds of @n_given pieces are there. Returns 0, or
 * -ECANCELED: the transfer is stopped. */
int lane_wait_turn(struct lane *l, size_t n_given);

/* What became of a search for bytes to work on. */
enum { LANE_DONE, LANE_FOUND, LANE_NOT_YET };

/** Finds bytes without a gap from @p to *limit, which is under the transfer's lock; waits for some with
 * @block. Returns one of LANE_, or -ECANCELED. */
int lane_find_run(struct lane *l, const struct position *p, const uint64_t *limit, bool block,
		  uint64_t most, uint64_t *ret_bytes);
