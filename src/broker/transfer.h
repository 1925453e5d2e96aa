// SPDX-License-Identifier: MIT
/* A transfer as a session sees it: begun by its layout, started, watched, and finished. See lane.h. */
#pragma once

#include "broker/lane.h"

/** Begins to make ready what the layout wants: GPUs, and host memory where the copy goes to fresh memory. @wake_fd: an
 * eventfd (borrowed), told when all is done or has failed, and when more of it is of use. */
int transfer_new(struct transfer **ret, struct driver *driver, struct gpus *gpus,
		 const struct transfer_piece *pieces, size_t n, uint32_t flags, int wake_fd,
		 struct brumate_error *err);
/** All of it, under way or not. Accepts NULL. */
void transfer_free(struct transfer *t);

/** Takes memory for a ring, through which the client will send what comes in: see below. */
int transfer_stream(struct transfer *t, struct brumate_error *err);
/** Starts to copy. @host: taken; where it comes from, or the base that it goes to; NULL: what was made ready.
 * @early: out: segments that are whole are told of. */
int transfer_start(struct transfer *t, struct segments *host, bool early,
		   struct brumate_error *err);
/** Takes the fds of the next @n pieces, or -EBADMSG: they are more than there are pieces, and not taken. */
int transfer_give(struct transfer *t, const int *fds, size_t n);
/** Ends everything with this error, if it is the first. */
void transfer_fail(struct transfer *t, const struct brumate_error *err);

/** How far it is. */
struct transfer_view {
	uint64_t done_bytes;
	bool made;	 /* in: all pieces are there */
	size_t n_filled; /* in: so many of the first pieces are filled */
	size_t n_whole;	 /* out: so many of the first segments hold all that they will hold */
};
/** Returns 1 when the transfer is done, 0 while it is under way, <0 when it failed. */
int transfer_look(struct transfer *t, struct transfer_view *ret, struct brumate_error *err);
/** Ends the threads and lets go of all device memory; the host copy and the fds of pieces stay. */
void transfer_finish(struct transfer *t);

/*
 * ---- streams (stream.c) ----
 *
 * Device memory that comes in without a host copy: the client fills slots of a ring with what it reads, and the
 * lanes copy them to their GPUs and give them back. So a restore needs no more host memory than the ring, and
 * nothing waits until all has been read.
 */

struct stream;

/** Takes a ring for the transfer from the pool. -EOPNOTSUPP: it has no room for one. */
int stream_new(struct stream **ret, struct transfer *t, struct brumate_error *err);
/** No lane runs any more. Accepts NULL. */
void stream_free(struct stream *s);

/** The ring's descriptor (owned) for the client, and how long it is. */
int stream_lease(struct stream *s, uint64_t *ret_bytes, struct brumate_error *err);
/** Takes from the client that @slot holds @bytes from @offset on. -EBADMSG: that cannot be. */
int stream_fill(struct transfer *t, unsigned slot, uint64_t offset, uint64_t bytes,
		struct brumate_error *err);
/** The slots that became free since it was last asked, as a mask. */
uint32_t stream_take_freed(struct transfer *t);

/** Copies what comes to the lane's pieces. @turns: it takes turns with the driver. */
int stream_copy(struct lane *l, bool turns, struct brumate_error *err);
