// SPDX-License-Identifier: MIT
/*
 * The keeper of a job: a small process of ours that holds file descriptors, each under a tag, so that
 * what is the only copy of a job's memory is held by two processes. It outlives the shim, starts the next
 * one at once, gives back what it holds to that one, and ends once it holds nothing or the job has ended. This
 * is its client and what the two say to each other; src/shim/keeper.c is the program.
 *
 * One socket (SOCK_SEQPACKET) "keeper.sock" in the job's directory. A request, then its replies.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "client/peer.h"
#include "job/target.h"
#include "process/process.h"

enum { KEEPER_FDS_MAX = 64 };

/* HOLD   n fds under n tags; a tag that is held gets the new fd.
 * GIVE   all tags with their fds, in packets; more is set in all but the last.
 * DROP   n tags; those that are not held do not matter.
 * WATCH  one fd, a pidfd: what is held is useless once that process has ended. The reply's first tag
 *        has the keeper's own pid. No fd: the shim is about to hang up as it wants nothing any more, and has
 *        not died. */
enum keeper_op { KEEPER_HOLD = 1, KEEPER_GIVE, KEEPER_DROP, KEEPER_WATCH };

enum keeper_kind {
	KEEPER_DEVICE = 1 /* of piece id of process pid */,
	KEEPER_HOST /* segment id */,
	KEEPER_DIGESTS /* of the segments */
};

struct keeper_tag {
	uint32_t kind, pid;
	uint64_t id;
};

struct keeper_message {
	uint32_t op, n;
	int32_t error; /* in replies */
	uint32_t more;
	struct keeper_tag tags[KEEPER_FDS_MAX];
};

/** One packet with its fds (owned by the caller), from either side. 0; -EMFILE: the message is there, but not all its
 * fds, and none is kept; -EPIPE; -errno. */
int keeper_receive(int socket_fd, struct keeper_message *ret, int *ret_fds, size_t *ret_n_fds);
/** @fds borrowed. */
int keeper_send(int socket_fd, const struct keeper_message *m, const int *fds, size_t n_fds);

/* In the directory: a lock of the owner of what is kept, by which the keeper sees that the owner lives, and, where its
 * successor is another program than the shim, a note as long as that is to be started if the owner dies. */
#define KEEPER_OWNER_LOCK "shim.lock"
#define KEEPER_HEIR_NOTE  "heir"

/** Starts the program @name as the successor of the owner of @dir. 0, -errno. */
int keeper_start_heir(const char *name, const char *dir, struct brumate_error *err);

struct keeper {
	int fd;	   /* -1: not connected */
	pid_t pid; /* known after keeper_open() */
	/* may_end: the connected client holds all that the keeper holds. It is not so after keeper_connect() or
	 * keeper_open(). */
	struct peer peer;
};
#define KEEPER_EMPTY ((struct keeper){ .fd = -1 })

/** Connects to the job's keeper. -ENOENT: there is none. */
int keeper_connect(struct keeper *ret, const struct target *target, struct brumate_error *err);
/** Like keeper_connect(), but starts a keeper if there is none; it watches the job's root. @is_spare: the caller holds
 * all that the keeper may hold, so a keeper that stands still is killed; the calls below do so if @ret->peer.may_end is
 * set. */
int keeper_open(struct keeper *ret, const struct target *target, bool is_spare,
		struct brumate_error *err);
/** Accepts the empty value. The keeper goes on: where it cannot tell that the shim lives, it starts the next one. */
void keeper_close(struct keeper *k);
/** Like keeper_close(), for a keeper that is no longer needed. It ends, unless it still holds something. */
void keeper_dismiss(struct keeper *k);

/* The calls. -EPIPE: it is gone, and what it held with it. */

/** Any number of them; @fds borrowed. */
int keeper_hold(struct keeper *k, const struct keeper_tag *tags, const int *fds, size_t n,
		struct brumate_error *err);
int keeper_drop(struct keeper *k, const struct keeper_tag *tags, size_t n,
		struct brumate_error *err);
/** @fn is called for each, and owns the fd. */
int keeper_give(struct keeper *k, void (*fn)(void *arg, struct keeper_tag tag, int fd), void *arg,
		struct brumate_error *err);
