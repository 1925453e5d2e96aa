// SPDX-License-Identifier: MIT
/*
 * Workers: a group of threads that work on one thing for one owner. There are three ways to have them.
 *
 * workers_run() does each of a number of items once. workers_start() and workers_wait() are for workers that
 * find out by themselves what there is to do. With both the owner waits, may be asked ten times a second
 * whether to go on, and gets the error of the worker that failed first, which stops the others. A queue takes
 * work as it comes and does it in that order; what fails is the business of the work itself.
 *
 * Signals stay with the owner's threads.
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

/** Works until there is no more to do, or worker_is_stopped(). <0: it failed, and @err says why. */
typedef int (*workers_fn)(void *arg, const struct worker *me, struct brumate_error *err);

/** Asked every WORKERS_TICK_MS, and when a worker ends, in the owner's thread. <0 stops the workers. */
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
	unsigned n_running;   /* under lock, as is what follows */
	int r;		      /* of the worker that failed first */
	struct brumate_error err;
};

/** Starts up to @n workers (at least 1), fewer where there are no more threads to be had. Returns 0, or -errno
 * if not one could be started. */
int workers_start(struct workers *w, unsigned n, workers_fn fn, void *arg);

/** Tells the workers to end: worker_is_stopped() is true from now on. */
static inline void workers_stop(struct workers *w)
{
	atomic_store_explicit(&w->stop, true, memory_order_relaxed);
}

/** Whether workers are to return: one of them failed, or the owner wants no more. */
static inline bool workers_are_stopped(const struct workers *w)
{
	return atomic_load_explicit(&w->stop, memory_order_relaxed);
}

static inline bool worker_is_stopped(const struct worker *me)
{
	return workers_are_stopped(me->group);
}

/** Waits for the workers. @tick may be NULL. Returns 0, what @tick said (<0, "stopped: ..."), or the first
 * failure of a worker. Returns 0 for workers that were not started, or were waited for. */
int workers_wait(struct workers *w, workers_tick_fn tick, void *tick_arg,
		 struct brumate_error *err);

/** Does item @item. <0: it failed, and @err says why; no item is begun after that. */
typedef int (*workers_item_fn)(void *arg, size_t item, const struct worker *me,
			       struct brumate_error *err);

struct workers_items {
	size_t n;	  /* they are begun in the order of their numbers, from 0 */
	unsigned threads; /* at most; 0: as many as there are cores */
	workers_item_fn fn;
	void *arg;
	workers_tick_fn tick; /* NULL: the caller's thread is one of the workers */
	void *tick_arg;
};

/** Does all @items and returns when they are done. Without a tick it needs no thread to be had. Returns as
 * workers_wait() does; -EAGAIN: there is a tick, and no thread for the work. */
int workers_run(const struct workers_items *items, struct brumate_error *err);

/* ---- queue ---- */

/** Work for a queue. It stands in what it is about, and is its owner's again when run() is called. */
struct work {
	void (*run)(struct work *work);
	struct work *next; /* the queue's */
};

struct work_queue;

/** A queue (owned) of @threads threads, which start as they are needed. Errors to act on: -EAGAIN (no
 * thread). */
int work_queue_new(struct work_queue **ret, unsigned threads, struct brumate_error *err);

/** Adds @work, which may come from any thread, the queue's own too. */
void work_queue_add(struct work_queue *q, struct work *work);

/** Does all that was added, then ends. Accepts NULL. */
void work_queue_free(struct work_queue *q);
DEFINE_AUTO(struct work_queue *, work_queue_free)
