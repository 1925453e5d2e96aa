// SPDX-License-Identifier: MIT
/* A transfer as a session uses it: created with its layout, started, watched, and finished. See lane.h. */
#pragma once

#include "broker/lane.h"

/** Begins to make ready what the layout needs: GPUs, and host memory if the copy goes to fresh memory. @wake_fd: an
 * eventfd (borrowed), signalled when all is done or has failed, and when more of the copy can be used. */
int transfer_new(struct transfer **ret, struct driver *driver, struct gpus *gpus,
		 const struct transfer_piece *pieces, size_t n, uint32_t flags, int wake_fd,
		 struct brumate_error *err);
/** Cancels it if it is under way. Accepts NULL. */
void transfer_free(struct transfer *t);

/** Takes memory for a ring, through which the client will send what comes in: see below. */
int transfer_stream(struct transfer *t, struct brumate_error *err);
/** Starts to copy. @host: taken; the source, or the base to be updated; NULL: use the memory that was made ready.
 * @early: on the way out, report segments as they become complete. */
int transfer_start(struct transfer *t, struct segments *host, bool early,
		   struct brumate_error *err);
/** Takes the fds of the next @n pieces. -EBADMSG: there are fewer pieces than that; the fds are not taken. */
int transfer_give(struct transfer *t, const int *fds, size_t n);
/** Ends everything with this error, if it is the first one. */
void transfer_fail(struct transfer *t, const struct brumate_error *err);

/** The progress of a transfer. */
struct transfer_view {
	uint64_t done_bytes;
	bool made;	 /* in: all pieces are allocated */
	size_t n_filled; /* in: how many of the first pieces are filled */
	size_t n_whole;	 /* out: how many of the first segments are complete */
};
/** Returns 1 when the transfer is done, 0 while it is under way, <0 when it failed. */
int transfer_look(struct transfer *t, struct transfer_view *ret, struct brumate_error *err);
/** Whether the client has more to give before this can end: pieces, or what is to be in them. */
bool transfer_waits_for_client(struct transfer *t);
/** Ends the threads and releases all device memory; the host copy and the pieces' fds stay. */
void transfer_finish(struct transfer *t);

/*
 * ---- streams (stream.c) ----
 *
 * Device memory that comes in without a host copy: the client fills slots of a ring with what it reads, and the lanes
 * copy them to their GPUs and free the slots. So a restore needs no more host memory than the ring, and copying
 * starts before everything is read.
 */

struct stream;

/** Takes a ring for the transfer from the pool. -ENOMEM. */
int stream_new(struct stream **ret, struct transfer *t, struct brumate_error *err);
/** No lane runs any more. Accepts NULL. */
void stream_free(struct stream *s);

/** The ring's descriptor (owned) for the client, and its length. */
int stream_lease(struct stream *s, uint64_t *ret_bytes, struct brumate_error *err);
/** Notes that the client has filled @slot with @bytes from @offset on. -EBADMSG: that is not possible. */
int stream_fill(struct transfer *t, unsigned slot, uint64_t offset, uint64_t bytes,
		struct brumate_error *err);
/** The slots that became free since the last call, as a mask. */
uint32_t stream_take_freed(struct transfer *t);

/** Copies filled slots to the lane's pieces. @turns: takes turns with the driver. */
int stream_copy(struct lane *l, bool turns, struct brumate_error *err);
