// SPDX-License-Identifier: MIT
/*
 * What the files share that move device memory: GPUs that are open, a crew of threads, a host copy
 * whose segments become ready one after the other, and the mover that joins them.
 */
#pragma once

#include "broker/pool.h"
#include "wire/host-copy.h"
#include "wire/transfer.h"

#include <pthread.h>

/* data-gpus.c: GPUs, opened when first wanted and kept until nobody has wanted any for a while */

/** Opens the GPU, or waits until another thread has. It stays open until gpus_close(). */
int gpus_get(struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
	     struct brumate_error *err);
/** Some GPU that is open, or NULL; waits for those that are being opened if none is. */
struct dev_memory *gpus_any(void);
/** Closes all; nothing of them is in use. */
void gpus_close(void);
/** The operations of the backend, once the driver is there. */
const struct dev_memory_ops *gpus_ops(void);
void gpus_init(const struct dev_memory_ops *ops);

/* data-crew.c: a few threads that do jobs in the order they were given */

struct crew;
struct crew_job {
	void (*run)(struct crew_job *job);
	struct crew_job *next; /* the crew's */
};
/** @n_max threads, or as many as there are processors where their jobs do not wait for a disk. */
int crew_new(struct crew **ret, unsigned n_max, bool waits, struct brumate_error *err);
/** @job stays where it is until it was run. */
void crew_add(struct crew *c, struct crew_job *job);
/** Returns when all jobs have been run. Accepts NULL. */
void crew_free(struct crew *c);

/* data-host.c: a host copy */

struct host_job;
struct host_copy {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t total_bytes, segment_bytes;
	struct segment **segments;
	size_t n_segments;
	bool needs_ring; /* some segment is not pinned, nor will be */
	bool spilled;	 /* some is on a disk; then these are of use */
	bool as_is;	 /* what it held before may stay: its holder writes all of it */
	struct seal_disk_key key;
	int key_fd;
	bool *clean;   /* once it is ready: all of it is zero */
	bool *ready;   /* the rest under the lock */
	bool *wanted;  /* is ready or will be; the segment is another no more */
	bool *skipped; /* zeros were not written, as nobody wanted it yet */
	bool *scrub;   /* all of it is to be made zero first */
	size_t n_ready;
	bool stopped;
	bool held;		  /* its holder writes it, none of our copies */
	struct brumate_error err; /* why it is stopped, if it failed */
	struct host_job *jobs;
	struct crew *crew;
	int wake_fd; /* eventfd, borrowed: told when all are ready or one failed */
};

/* Who is to write it. */
enum host_use {
	HOST_FOR_COPY, /* copies: what is wanted is made ready, what never is reads as zeros in the end */
	HOST_FOR_HOLDER, /* who gets it, all zero: pages that are not there are the cheapest */
	HOST_AS_IS,	 /* who gets it, maybe with what it held */
};

/** Takes memory. What is for a holder is made ready in the background. @nodes: wanted for each segment,
 * or NULL. */
int host_copy_new(struct host_copy **ret, uint64_t total_bytes, const int *nodes, enum host_use use,
		  int wake_fd, struct brumate_error *err);
/** Has these segments made ready, in this order; those that are, or are told to be, already stay so. */
void host_copy_want(struct host_copy *h, size_t first, size_t end);
/** Whether zeros in segment @i need not be written: it has no pages yet, or will be exchanged for one that
 * has none. @now: they are not. Nothing of it was wanted before. */
bool host_copy_skips_zeros(struct host_copy *h, size_t i, bool now);
/** A copy that others hold. @fds borrowed, with that of the key where some segment is on a disk. */
int host_copy_adopt(struct host_copy **ret, uint64_t total_bytes, uint64_t segment_bytes,
		    const int *fds, size_t n, struct brumate_error *err);
/** The segment, which is wanted, when it is ready: 0; 1 if it is not and @block is false; <0: stopped, or it failed. */
int host_copy_get(struct host_copy *h, size_t i, bool block, struct segment **ret,
		  struct brumate_error *err);
/** 1 when all are ready, 0 when not yet, <0 when one failed. */
int host_copy_state(struct host_copy *h, struct brumate_error *err);
/** How many descriptors a holder gets: of all segments, and perhaps of their key. */
size_t host_copy_fds(const struct host_copy *h);
/** Those from number @first to before @end (owned). */
int host_copy_lease(struct host_copy *h, size_t first, size_t end, int *ret_fds,
		    struct brumate_error *err);
/** Makes whoever waits give up. */
void host_copy_stop(struct host_copy *h);
/** Lets the segments go. Accepts NULL. */
void host_copy_free(struct host_copy *h);

/* data-mover.c, data-lane.c and data-digest.c: pieces of device memory out to a host copy, or in from one */

struct lane;
struct piece {
	uint64_t offset, len_bytes; /* in the host copy */
	size_t lane;
	uint64_t lane_end; /* bytes of the lane's pieces up to its end */
	int fd;
};

struct mover {
	const struct dev_memory_ops *ops;
	uint32_t flags; /* of the layout */
	bool to_host;
	bool early; /* out: segments that are whole are told of; before mover_start() */
	struct piece *pieces;
	size_t n_pieces;
	uint64_t total_bytes;
	struct lane *lanes; /* one for each GPU */
	size_t n_lanes;
	int wake_fd; /* eventfd, borrowed: told when all is done or has failed */

	pthread_mutex_t lock; /* of what follows */
	pthread_cond_t changed;
	struct host_copy *host;
	struct crew *crew; /* for copies between host memory */
	size_t n_given;	   /* pieces whose fd is there */
	size_t n_made;	   /* in: pieces that the GPU may write to */
	size_t n_filled;   /* of the first pieces, those that are copied */
	size_t n_whole;	   /* out: of the first segments, those that hold all they will hold */
	bool started, stopped;
	size_t n_running; /* threads */
	uint64_t done_bytes;
	uint64_t zero_bytes, same_bytes; /* of these, not copied */
	struct brumate_error err;

	struct chunks *chunks; /* what is known of them; NULL: nothing */
};

/** Begins to make ready, by the flags of a layout: GPUs, and host memory where it goes to fresh such. */
int mover_new(struct mover **ret, const struct transfer_piece *pieces, size_t n, uint32_t flags,
	      int wake_fd, struct brumate_error *err);
/** Starts to copy. @host: taken; where it comes from, or the base that it goes to. */
int mover_start(struct mover *m, struct host_copy *host, struct brumate_error *err);
/** Takes the fds of the next @n pieces. -EBADMSG: more than there are. */
int mover_give(struct mover *m, const int *fds, size_t n);
/** 1 when done, 0 while under way, <0 when it failed. */
int mover_state(struct mover *m, uint64_t *ret_done_bytes, struct brumate_error *err);
/** In: whether all pieces have been made, and how many of the first are filled. */
bool mover_has_made(struct mover *m, size_t *ret_filled);
/** Out: how many of the first segments hold all that they will hold. */
size_t mover_whole(struct mover *m);
/** Under the lock: more may be filled, or whole. Whoever waits for the mover is told. */
void mover_note(struct mover *m);
/** Ends the threads and lets go of all device memory; the host copy and the fds of pieces stay. */
void mover_finish(struct mover *m);
/** All of it, under way or not. Accepts NULL. */
void mover_free(struct mover *m);

/** Ends everything with this error, the first to come. */
void mover_fail(struct mover *m, const struct brumate_error *err);

int lanes_start(struct mover *m, struct brumate_error *err);
void lanes_finish(struct mover *m);
/** Adds a GPU's lane for @uuid, or finds it. */
int lane_find(struct mover *m, const uint8_t *uuid, size_t *ret, struct brumate_error *err);
int lane_add_piece(struct mover *m, size_t lane, size_t piece);
/** Under the mover's lock: how much of @p is copied, from its beginning. */
uint64_t lane_filled_bytes(const struct mover *m, const struct piece *p);

/* data-chunks.c: digests of what is copied, computed on the GPU beside the copies */

enum chunk_fate { CHUNK_COPY, CHUNK_ZERO, CHUNK_KEEP };

/** For the mover's layout; before mover_start(). @fd: borrowed, of the digest table; -1: none. */
int chunks_new(struct mover *m, int fd, struct brumate_error *err);
/** The copies are done: the table tells what is in the host copy, if all of it is known. */
void chunks_finish(struct mover *m);
/** Puts the digests of the chunks from @start to before @end of the host copy into the table, before it is
 * whole. False: some are not known, or there is no table. */
bool chunks_tell(struct mover *m, uint64_t start, uint64_t end);
/** Whether all that came in was compared. */
bool chunks_are_compared(const struct mover *m);
void chunks_free(struct chunks *c); /* accepts NULL */
/** What is to become of the bytes at @offset of the host copy, whose digests are known: on the way out those
 * that the GPU computed, on the way in those of the table, with chunks_are_known(). *bytes, a
 * multiple of 2 MiB, is cut to those that share the fate. */
enum chunk_fate chunks_fate(const struct mover *m, uint64_t offset, uint64_t *bytes);
/** Whether there is a table that tells what is in the host copy. */
bool chunks_are_known(const struct mover *m);
/** Has the segments made ready that are needed for bytes whose fate is known. True if, on the way
 * in, one will not be pinned. */
bool chunks_want(const struct mover *m, uint64_t offset, uint64_t bytes);
const uint8_t *lane_uuid(const struct mover *m, size_t lane);
