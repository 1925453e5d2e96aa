// SPDX-License-Identifier: MIT
/*
 * Waiting for the answer of a broker or a keeper. One that stands still, stopped by a signal or frozen with its cgroup,
 * never answers and never hangs up. So it is killed, and its client goes on as after any death: with another one. One
 * that may hold what no other process has is waited for.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "process/process.h"

struct peer {
	struct proc_id id; /* of pid 0: not known, and waited for as long as it takes */
	bool may_end;	   /* nothing is lost with it */
	unsigned still;	   /* looks, one after the other, at which it stood still */
};
#define PEER_NONE ((struct peer){ .may_end = false })

/** The process @pid, that may end; it is not known where it cannot be looked at. */
void peer_set(struct peer *p, pid_t pid);

/** Whether it is stopped or frozen now. */
bool peer_stands_still(const struct peer *p);

/** How long to wait before the next look. */
enum { PEER_LOOK_MS = 100 };

/** Looks, while it is waited for. 0; -EPIPE: it stood still for about a second, and was ended; -ETIMEDOUT: it did, and
 * cannot be ended. */
int peer_look(struct peer *p);

/** Like fd_wait(), for the peer's answer. Also -EPIPE, as from peer_look(). */
int peer_wait(struct peer *p, int fd, short events, uint64_t deadline_ns);

/** Says that @name did not answer (-ETIMEDOUT), and why, where it stands still. */
int peer_fail(const struct peer *p, const char *name, struct brumate_error *err);
