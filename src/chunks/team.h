// SPDX-License-Identifier: MIT
/*
 * Threads that work on one thing for one owner. The owner waits, reports and may cancel; the first
 * failure stops them all. Signals stay with the owner.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"

enum { TEAM_MAX = 64 };

/** The work of thread @index. <0: failed, @err says why. Runs until there is no more work. */
typedef int (*team_fn)(void *arg, unsigned index, struct brumate_error *err);

struct team {
	team_fn fn;
	void *arg;
	pthread_t threads[TEAM_MAX];
	unsigned n;
	atomic_uint next_index;
	atomic_bool stop; /* somebody failed, or the owner wants no more */

	pthread_mutex_t lock;
	pthread_cond_t ended; /* a thread */
	unsigned n_running;   /* under lock, as is what follows */
	int r;
	struct brumate_error err;
};

/** Cores that this process may use, at least 1, at most @most. */
unsigned team_cores(unsigned most);

/** Starts up to @n threads (1 to TEAM_MAX). 0; -EAGAIN if not one could be started. */
int team_start(struct team *t, unsigned n, team_fn fn, void *arg);

/** True when threads should return. */
static inline bool team_stopped(const struct team *t)
{
	return atomic_load_explicit(&t->stop, memory_order_relaxed);
}

/** Asked by team_wait() in the owner's thread ten times a second. <0 stops the team. */
typedef int (*team_tick_fn)(void *arg);

/** Waits for the threads. The first failure (@err), or what @tick (may be NULL) said. A team that
 * was not started, or was waited for, returns 0. */
int team_wait(struct team *t, team_tick_fn tick, void *tick_arg, struct brumate_error *err);
