// SPDX-License-Identifier: MIT
/* The lane of one GPU, which three threads share: one maps, one copies, and one computes digests. */
#pragma once

#include "broker/data.h"

#define STEP_BYTES  (32ull << 20)
#define TURN_BYTES  (16ull << 20) /* a step of a transfer that takes turns with the driver */
#define SMALL_BYTES (16ull << 30) /* which one does: the driver's own work takes as long */
#define SLOT_BYTES  (8ull << 20)
#define ZERO_BYTES  (1ull << 30)  /* filled by the GPU at a time */
#define BATCH_BYTES (64ull << 20) /* mapped before the GPU is let at them */

enum {
	WINDOW = 16,
	SPIN_CORES_MIN = 4,
	SLOTS_ALL = 32, /* of all lanes together, as far as each has SLOTS_MIN */
	SLOTS_MIN = 4,
	DIGESTERS = 2,	  /* one computes while the results of the other are read */
	BEHIND_GOES = 32, /* in which what was copied out is unmapped */
};

struct step {
	struct crew_job job;
	struct lane *lane;
	enum chunk_fate fate;
	bool clean; /* the segment holds zeros already */
	uint64_t at, bytes, ticket;
	struct segment *segment;
	uint64_t inside; /* the segment, where the copy's bytes are */
	char *slot;	 /* NULL: the copy is direct */
	bool given;	 /* to the crew */
	bool moved;	 /* by it; this and why it failed are under the mover's lock */
	int error;
};

/* How far a thread is: in which piece, bytes into it, bytes of the lane's pieces before that. */
struct place {
	size_t piece;
	uint64_t bytes, done;
};

struct lane {
	struct mover *mover;
	uint8_t uuid[DEV_UUID_BYTES];
	size_t *pieces; /* indexes */
	size_t n_pieces;
	size_t n_mapped, n_unmapped; /* by the mapping thread alone, until all have ended */

	bool opened; /* the rest of these under the mover's lock */
	/* Of the lane's pieces, in their order: what the GPU may read and write, whose digests are
	 * known, what is copied. */
	uint64_t usable_bytes, digested_bytes, copied_bytes;

	struct dev_memory *memory; /* set before opened */
	struct dev_lane *copies;
	struct dev_digester *digesters[DIGESTERS];
	size_t n_digesters;
	uint64_t at; /* where the host copy's byte 0 would be mapped */
	bool reserved;

	struct place copying; /* the copying thread's */
	struct step steps[WINDOW];
	struct segment *ring; /* NULL: none is needed, or to be had */
	size_t n_slots;	      /* of SLOT_BYTES in it */

	pthread_t threads[3];
	size_t n_threads, n_active; /* of them; under the mover's lock */
};

enum { STEP_NONE, STEP_BEGUN, STEP_NOT_YET };

static inline struct piece *piece_of(const struct lane *l, size_t i)
{
	return &l->mover->pieces[l->pieces[i]];
}

/* Whether piece @i + 1 follows piece @i without a gap. */
static inline bool is_followed(const struct lane *l, size_t i)
{
	return i + 1 < l->n_pieces &&
	       piece_of(l, i)->offset + piece_of(l, i)->len_bytes == piece_of(l, i + 1)->offset;
}

/* Of the host copy. */
static inline uint64_t place_offset(const struct lane *l, const struct place *p)
{
	return piece_of(l, p->piece)->offset + p->bytes;
}

/*
 * The driver copies too, for the same job: with a queue of ours in front of it its restore takes 0.27 s instead
 * of 0.2 (H200, driver 580.159.04). Where it takes longest the GPU is given one copy at a time. Of several GPUs
 * each would wait for the others' calls between two copies. Of a job that runs the driver copies nothing.
 */
static inline bool lane_takes_turns(const struct mover *m)
{
	return m->total_bytes < SMALL_BYTES && m->n_lanes == 1 && !(m->flags & TRANSFER_LIVE);
}

void place_advance(const struct lane *l, struct place *p, uint64_t bytes);

/** Waits until the lane is open, the copy has begun and the fds of @n_given pieces are there. */
int lane_wait_turn(struct lane *l, size_t n_given);

/** Bytes without a gap from @p to *limit, which is under the mover's lock; waits for some, if it may.
 * Returns one of STEP_, or <0. */
int lane_find_run(struct lane *l, const struct place *p, const uint64_t *limit, bool block,
		  uint64_t most, uint64_t *ret_bytes);

/** Last act of a thread; the last one closes the lane. */
void lane_end_thread(struct lane *l);

/* data-map.c */

/** The thread. */
void *lane_run_map(void *arg);
/** Unmaps what still is mapped; nobody works on the lane any more. */
void lane_close(struct lane *l);

/* data-ring.c */

/** Takes memory for the lane's slots; none where it cannot be pinned, unless the host copy needs it. */
int lane_take_ring(struct lane *l, struct brumate_error *err);

/* data-live.c */

/** Copies pieces that are written meanwhile; all that is to be copied. */
int lane_copy_live(struct lane *l, struct brumate_error *err);

/* data-digest.c */

/** Without them all is copied. */
void lane_open_digesters(struct lane *l);
void lane_close_digesters(struct lane *l);
/** The thread. */
void *lane_run_digest(void *arg);

/* data-chunks.c */

/** Takes the digests of @n chunks from @offset on. Where they had to be others: -EBADMSG. */
int chunks_learn(struct mover *m, uint64_t offset, const struct digest *digests, const bool *zero,
		 size_t n, struct brumate_error *err);
