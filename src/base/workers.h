// SPDX-License-Identifier: MIT
/*
 * Workers: a group of threads that work on one thing for one owner. There are three ways to use them.
 *
 * workers_run() does each of a number of items once. workers_start() and workers_wait() are for workers that
 * find their work themselves. With both, the owner waits, may get a call ten times a second in which it can stop
 * the workers, and gets the error of the first worker that failed, which stops the others. A queue does work in the
 * order in which it was added; failures are left to the work itself.
 *
 * Signals are delivered to the owner's threads.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/cleanup.h"
#include "base/error.h"

enum { WORKERS_TICK_MS = 100 };

/** The number of cores that this process may use, at least 1 and at most @most. */
unsigned workers_cores(unsigned most);

/** One worker, as its function sees it. */
struct worker {
	const struct workers *group;
	unsigned index; /* from 0, below the number of workers; no other worker has it */
};

/** Works until nothing is left to do, or worker_is_stopped(). <0: it failed, with @err. */
typedef int (*workers_fn)(void *arg, const struct worker *me, struct brumate_error *err);

/** Called every WORKERS_TICK_MS, and when a worker ends, in the owner's thread. <0 stops the workers. */
typedef int (*workers_tick_fn)(void *arg);

/* All zero: none were started. */
struct workers {
	workers_fn fn;
	void *arg;
	pthread_t *threads;
	unsigned n;
	atomic_uint next_index;
	atomic_bool stop;

	pthread_mutex_t lock;
	pthread_cond_t ended; /* a worker ended; monotonic */
	unsigned n_running;   /* under lock, like all below */
	int r;		      /* of the worker that failed first */
	struct brumate_error err;
};

/** Starts up to @n workers (at least 1), fewer if there are no more threads. Returns 0, or -errno if none could be
 * started. */
int workers_start(struct workers *w, unsigned n, workers_fn fn, void *arg);

/** Asks the workers to end: worker_is_stopped() is true from now on. */
static inline void workers_stop(struct workers *w)
{
	atomic_store_explicit(&w->stop, true, memory_order_relaxed);
}

/** Whether workers should return: one of them failed, or the owner stops them. */
static inline bool workers_are_stopped(const struct workers *w)
{
	return atomic_load_explicit(&w->stop, memory_order_relaxed);
}

static inline bool worker_is_stopped(const struct worker *me)
{
	return workers_are_stopped(me->group);
}

/** Waits for the workers. @tick may be NULL. Returns 0, the result of @tick (<0, "stopped: ..."), or the first
 * failure of a worker. Returns 0 if workers were not started, or have been waited for. */
int workers_wait(struct workers *w, workers_tick_fn tick, void *tick_arg,
		 struct brumate_error *err);

/** Does item @item. <0: it failed, with @err; no further item is started. */
typedef int (*workers_item_fn)(void *arg, size_t item, const struct worker *me,
			       struct brumate_error *err);

struct workers_items {
	size_t n;	  /* they are started in the order of their numbers, from 0 */
	unsigned threads; /* the limit; 0: as many as there are cores */
	workers_item_fn fn;
	void *arg;
	workers_tick_fn tick; /* NULL: the caller's thread is one of the workers */
	void *tick_arg;
};

/** Does all @items and returns when they are done. Without a tick, works even if no thread can be started. Returns
 * the same as workers_wait(); -EAGAIN: there is a tick, and no thread for the work. */
int workers_run(const struct workers_items *items, struct brumate_error *err);

/* ---- queue ---- */

/** Work for a queue. It is embedded in the object to be worked on, and belongs to its owner again when run() is
 * called. */
struct work {
	void (*run)(struct work *work);
	struct work *next; /* used by the queue */
};

struct work_queue;

/** A queue (owned) of up to @threads threads, which are started as they are needed. Errors to act on: -EAGAIN (no
 * thread). */
int work_queue_new(struct work_queue **ret, unsigned threads, struct brumate_error *err);

/** Adds @work, from any thread, including the queue's own. */
void work_queue_add(struct work_queue *q, struct work *work);

/** Does all work that was added, then ends. Accepts NULL. */
void work_queue_free(struct work_queue *q);
DEFINE_AUTO(struct work_queue *, work_queue_free)
