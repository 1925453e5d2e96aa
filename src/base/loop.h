// SPDX-License-Identifier: MIT
/*
 * One thread that waits for descriptors, for times, for other threads, and for the ends of its tasks. Sources are embedded in
 * the struct of their owner, and are of the loop's thread, except for loop_notify() and loop_wake(). A callback may add,
 * change and remove any source.
 */
#pragma once

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

typedef void (*loop_fn)(void *arg);

struct loop_source {
	struct loop *loop; /* NULL: in none */
	struct loop_source *next;
	loop_fn fn; /* NULL: only ends the turn */
	void *arg;
	int fd; /* borrowed; -1: none */
	short events, happened;
	uint64_t due_ns; /* by clock_boot_ns(); DEADLINE_NEVER: never */
	atomic_bool notified;
};

struct loop {
	struct loop_source *first, *cursor; /* the cursor is next in a turn under way */
	int wake_fd, timer_fd;
	uint64_t armed_ns; /* the time that timer_fd is set to */
};
#define LOOP_EMPTY ((struct loop){ .wake_fd = -1, .timer_fd = -1 })

/** 0 or -errno. */
int loop_init(struct loop *l);
/** Accepts LOOP_EMPTY. The sources stay their owners'. */
void loop_fini(struct loop *l);

/** Waits for up to @timeout_ms (-1: as long as it takes), and calls the sources that have something, each once, in the order in
 * which they were added. 0, also after a signal, or -errno. */
int loop_turn(struct loop *l, int timeout_ms);
/** Ends the turn under way, or the next one. Any thread, and signal handlers. */
void loop_wake(struct loop *l);

/** Adds a source that waits for nothing yet. LOOP_FDS_MAX at most have descriptors. */
void loop_add(struct loop *l, struct loop_source *s, loop_fn fn, void *arg);
/** Accepts a source that is in no loop. */
void loop_remove(struct loop_source *s);
enum { LOOP_FDS_MAX = 128 };

/** Watches @fd (-1: none) for @events of poll(2), or its hang-up, in the place of the previous one. */
void loop_watch(struct loop_source *s, int fd, short events);
/** Calls the source once, @ms from now, in the place of an earlier time. The machine's sleep counts. */
void loop_after(struct loop_source *s, uint64_t ms);
void loop_never(struct loop_source *s);
/** Whether the source waits for a time. */
bool loop_has_time(const struct loop_source *s);
/** Calls the source in the next turn. Any thread, as long as the source is not removed. */
void loop_notify(struct loop_source *s);

/* A thread that does something for the loop's, which joins it. */
struct loop_task {
	struct loop_source end;
	pthread_t thread;
	void (*work)(void *arg);
	loop_fn ended;
	void *arg;
};

/** Whether it has been started, and its end has not been seen. */
bool loop_task_works(const struct loop_task *t);
/** Has a thread run @work; after its end the loop calls @ended (NULL: nothing). One that works may not be started. 0 or
 * -errno: there is no thread. */
int loop_task_start(struct loop *l, struct loop_task *t, void (*work)(void *arg), loop_fn ended,
		    void *arg);
/** Waits for the ends of all that work; @ended is not called. */
void loop_join_tasks(struct loop *l);
