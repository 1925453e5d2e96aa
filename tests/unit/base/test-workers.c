// SPDX-License-Identifier: MIT
/* Workers do each item once, end at the first failure and at the owner's word; a queue does all work. */
#include "base/workers.h"
#include "base/thread.h"
#include "check.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>

enum { ITEMS = 1000, THREADS = 4 };

struct sums {
	atomic_uint done[ITEMS], started, ticks;
	size_t fail_at; /* item that fails; ITEMS: none */
	pthread_t owner;
	atomic_uint by_owner;
};

static bool takes_signals(void)
{
	sigset_t mask;

	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	return !sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGCHLD);
}

static int do_item(void *arg, size_t item, const struct worker *me, struct brumate_error *err)
{
	struct sums *s = arg;

	CHECK(me->index < THREADS);
	CHECK(takes_signals() == (bool)pthread_equal(pthread_self(), s->owner));
	atomic_fetch_add(&s->by_owner, pthread_equal(pthread_self(), s->owner));
	atomic_fetch_add(&s->started, 1);
	if (item == s->fail_at)
		return brumate_fail(err, EIO, "item %zu", item);
	atomic_fetch_add(&s->done[item], 1);
	return 0;
}

static int count_tick(void *arg)
{
	atomic_fetch_add((atomic_uint *)arg, 1);
	return 0;
}

static void run_all(workers_tick_fn tick, unsigned threads)
{
	struct sums s = { .fail_at = ITEMS, .owner = pthread_self() };
	struct workers_items items = { ITEMS, threads, do_item, &s, tick, &s.ticks };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(workers_run(&items, &err) == 0 && err.code == 0);
	for (size_t i = 0; i < ITEMS; i++)
		CHECK(s.done[i] == 1);
	CHECK(tick ? s.by_owner == 0 : s.ticks == 0);
	CHECK(takes_signals());
}

static void test_items(void)
{
	run_all(NULL, THREADS);
	run_all(count_tick, THREADS);
	run_all(NULL, 1);
	run_all(count_tick, 1);
}

static void test_no_items(void)
{
	CHECK(workers_run(&(struct workers_items){ .fn = do_item }, NULL) == 0);
	CHECK(workers_run(&(struct workers_items){ .fn = do_item, .tick = count_tick }, NULL) == 0);
}

static void test_failure(workers_tick_fn tick)
{
	struct sums s = { .fail_at = 3, .owner = pthread_self() };
	struct workers_items items = { ITEMS, THREADS, do_item, &s, tick, &s.ticks };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(workers_run(&items, &err) == -EIO);
	CHECK_STR(err.text, "item 3");
	CHECK(s.done[0] == 1 && s.done[3] == 0); /* those before it were begun */
}

/* ---- workers without items ---- */

static int wait_for_stop(void *arg, const struct worker *me, struct brumate_error *err)
{
	struct sums *s = arg;

	atomic_fetch_add(&s->done[me->index], 1);
	while (!worker_is_stopped(me))
		sched_yield();
	return 0;
}

static int cancel_third(void *arg)
{
	return atomic_fetch_add((atomic_uint *)arg, 1) == 2 ? -ECANCELED : 0;
}

static int fail_last(void *arg, const struct worker *me, struct brumate_error *err)
{
	return me->index == THREADS - 1 ? brumate_fail(err, ENOSPC, "full")
					: wait_for_stop(arg, me, err);
}

static void test_group(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct workers w = { 0 };
	struct sums s = { 0 };

	CHECK(workers_wait(&w, NULL, NULL, &err) == 0); /* not started */
	CHECK(workers_start(&w, THREADS, wait_for_stop, &s) == 0);
	CHECK(workers_wait(&w, cancel_third, &s.ticks, &err) == -ECANCELED);
	CHECK(!strncmp(err.text, "stopped: ", 9));
	CHECK(s.ticks == 3);
	for (size_t i = 0; i < THREADS; i++)
		CHECK(s.done[i] == 1);
	CHECK(workers_wait(&w, NULL, NULL, &err) == 0); /* waited for */

	CHECK(workers_start(&w, THREADS, fail_last, &s) == 0);
	CHECK(workers_wait(&w, NULL, NULL, &err) == -ENOSPC);
	CHECK_STR(err.text, "full");

	CHECK(workers_start(&w, 1, wait_for_stop, &s) == 0);
	workers_stop(&w);
	CHECK(workers_wait(&w, NULL, NULL, NULL) == 0);
}

static void test_cores(void)
{
	CHECK(workers_cores(1) == 1);
	CHECK(workers_cores(4096) >= 1);
}

/* ---- queue ---- */

struct letter {
	struct work work;
	struct letter *answer; /* added by the work itself */
	struct work_queue *queue;
	struct mailbox *to;
	unsigned number;
};

struct mailbox {
	atomic_uint n;
	unsigned order[2 * ITEMS];
};

static void deliver(struct work *work)
{
	struct letter *l = (struct letter *)work;

	CHECK(!takes_signals());
	l->to->order[atomic_fetch_add(&l->to->n, 1)] = l->number;
	if (l->answer)
		work_queue_add(l->queue, &l->answer->work);
}

static void run_queue(unsigned threads)
{
	static struct letter letters[ITEMS], answers[ITEMS];
	struct mailbox box = { 0 };
	struct work_queue *q;

	CHECK(work_queue_new(&q, threads, NULL) == 0);
	for (unsigned i = 0; i < ITEMS; i++) {
		answers[i] = (struct letter){ .work.run = deliver, .to = &box, .number = i };
		letters[i] = (struct letter){ { .run = deliver }, &answers[i], q, &box, i };
		work_queue_add(q, &letters[i].work);
	}
	work_queue_free(q);
	CHECK(box.n == 2 * ITEMS);
	for (unsigned i = 0, seen[ITEMS] = { 0 }; i < box.n; i++)
		CHECK(++seen[box.order[i]] <= 2);
}

/* All threads work at a time, however quickly the work came. */
struct meeting {
	struct work work;
	atomic_uint *there;
};

static void meet(struct work *work)
{
	struct meeting *m = (struct meeting *)work;

	atomic_fetch_add(m->there, 1);
	while (atomic_load(m->there) < THREADS)
		sched_yield();
}

static void test_queue_width(void)
{
	struct meeting meetings[THREADS];
	atomic_uint there = 0;
	struct work_queue *q;

	CHECK(work_queue_new(&q, THREADS, NULL) == 0);
	for (size_t i = 0; i < THREADS; i++) {
		meetings[i] = (struct meeting){ { .run = meet }, &there };
		work_queue_add(q, &meetings[i].work);
	}
	work_queue_free(q);
	CHECK(there == THREADS);
}

/* One thread does it in the order in which it came. */
static void test_queue_order(void)
{
	static struct letter letters[ITEMS];
	struct mailbox box = { 0 };
	struct work_queue *q;

	CHECK(work_queue_new(&q, 1, NULL) == 0);
	for (unsigned i = 0; i < ITEMS; i++) {
		letters[i] = (struct letter){ .work.run = deliver, .to = &box, .number = i };
		work_queue_add(q, &letters[i].work);
	}
	work_queue_free(q);
	for (unsigned i = 0; i < ITEMS; i++)
		CHECK(box.order[i] == i);
}

static void test_queue(void)
{
	struct work_queue *unused;

	test_queue_order();
	run_queue(1);
	run_queue(THREADS);
	test_queue_width();
	CHECK(work_queue_new(&unused, THREADS, NULL) == 0);
	work_queue_free(unused);
	work_queue_free(NULL);
}

/* ---- threads ---- */

static void *note_signals(void *arg)
{
	atomic_store((atomic_int *)arg, takes_signals() ? -1 : 1);
	return NULL;
}

static void test_threads(void)
{
	atomic_int seen = 0, seen_detached = 0;
	pthread_t thread;

	CHECK(thread_start(&thread, note_signals, &seen) == 0);
	pthread_join(thread, NULL);
	CHECK(seen == 1);
	CHECK(thread_start_detached(note_signals, &seen_detached, 256 << 10) == 0);
	while (!seen_detached)
		sched_yield();
	CHECK(seen_detached == 1);
	CHECK(takes_signals());
}

int main(void)
{
	test_items();
	test_no_items();
	test_failure(NULL);
	test_failure(count_tick);
	test_group();
	test_cores();
	test_queue();
	test_threads();
	return 0;
}
