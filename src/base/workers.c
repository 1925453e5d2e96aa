// SPDX-License-Identifier: MIT
/* Groups of threads and queues of work; see workers.h. */
#include "base/workers.h"

#include "base/clock.h"
#include "base/machine.h"
#include "base/thread.h"

#include <errno.h>

unsigned workers_cores(unsigned most)
{
	unsigned n = machine_cores();

	return n > most ? most : n;
}

/* ---- group ---- */

static void note_end(struct workers *w, int r, const struct brumate_error *err)
{
	pthread_mutex_lock(&w->lock);
	if (r < 0 && w->r == 0) {
		w->r = r;
		w->err = *err;
	}
	if (r < 0)
		workers_stop(w);
	w->n_running--;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
}

static void *run_worker(void *arg)
{
	struct workers *w = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const struct worker me = { .group = w, .index = atomic_fetch_add(&w->next_index, 1) };
	int r = w->fn(w->arg, &me, &err);

	note_end(w, r, &err);
	return NULL;
}

static void init_group(struct workers *w, workers_fn fn, void *arg)
{
	*w = (struct workers){ .fn = fn, .arg = arg };
	pthread_mutex_init(&w->lock, NULL);
	condition_init(&w->ended);
}

/* Starts up to @n threads. Returns 0, or -errno of the one that could not be started. */
static int start_threads(struct workers *w, unsigned n)
{
	int r = 0;

	w->threads = calloc(n, sizeof(*w->threads));
	if (!w->threads)
		return -ENOMEM;
	pthread_mutex_lock(&w->lock);
	while (w->n < n && r == 0) {
		r = thread_start(&w->threads[w->n], run_worker, w);
		w->n += r == 0;
	}
	w->n_running += w->n;
	pthread_mutex_unlock(&w->lock);
	return r;
}

/* Joins the threads and frees what the group has. Returns the first failure. */
static int end_group(struct workers *w, struct brumate_error *err)
{
	for (unsigned i = 0; i < w->n; i++)
		pthread_join(w->threads[i], NULL);
	w->n = 0;
	cleanup_free(&w->threads);
	pthread_cond_destroy(&w->ended);
	pthread_mutex_destroy(&w->lock);
	if (w->r < 0 && err)
		*err = w->err;
	return w->r;
}

int workers_start(struct workers *w, unsigned n, workers_fn fn, void *arg)
{
	init_group(w, fn, arg);
	int r = start_threads(w, n);

	if (w->n)
		return 0;
	end_group(w, NULL);
	return r;
}

/* Calls @tick from time to time until all workers have ended. Returns its result. */
static int tick_until_ended(struct workers *w, workers_tick_fn tick, void *tick_arg)
{
	int told = 0;

	pthread_mutex_lock(&w->lock);
	while (w->n_running) {
		struct timespec until = deadline_timespec(deadline_in_ms(WORKERS_TICK_MS));

		pthread_cond_timedwait(&w->ended, &w->lock, &until);
		pthread_mutex_unlock(&w->lock);
		if (told == 0 && (told = tick(tick_arg)) < 0)
			workers_stop(w);
		pthread_mutex_lock(&w->lock);
	}
	pthread_mutex_unlock(&w->lock);
	return told;
}

int workers_wait(struct workers *w, workers_tick_fn tick, void *tick_arg, struct brumate_error *err)
{
	if (w->n == 0)
		return 0;
	int told = tick ? tick_until_ended(w, tick, tick_arg) : 0;
	int r = end_group(w, err);

	return told < 0 ? brumate_fail(err, -told, "stopped: %m") : r;
}

/* ---- items ---- */

struct items_left {
	const struct workers_items *items;
	atomic_size_t next;
};

static int do_items(void *arg, const struct worker *me, struct brumate_error *err)
{
	struct items_left *left = arg;
	const struct workers_items *items = left->items;
	int r = 0;

	while (r == 0 && !worker_is_stopped(me)) {
		size_t item = atomic_fetch_add(&left->next, 1);

		if (item >= items->n)
			break;
		r = items->fn(items->arg, item, me, err);
	}
	return r;
}

static unsigned threads_for(const struct workers_items *items)
{
	unsigned n = items->threads ? items->threads : machine_cores();

	return n > items->n ? (unsigned)items->n : n;
}

int workers_run(const struct workers_items *items, struct brumate_error *err)
{
	struct items_left left = { .items = items };
	unsigned threads = threads_for(items);
	struct workers w;

	if (items->n == 0)
		return 0;
	if (items->tick) {
		int r = workers_start(&w, threads, do_items, &left);

		return r < 0 ? brumate_fail(err, -r, "no thread: %m")
			     : workers_wait(&w, items->tick, items->tick_arg, err);
	}
	init_group(&w, do_items, &left);
	w.n_running = 1;
	if (threads > 1)
		start_threads(&w, threads - 1);
	run_worker(&w);
	return end_group(&w, err);
}

/* ---- queue ---- */

struct work_queue {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct work *first, **last;
	size_t n_waiting; /* work that no thread has taken yet */
	bool ending;
	unsigned n, n_max, n_idle;
	pthread_t threads[];
};

/* Under the lock: waits for work and removes it. Returns NULL when the queue is empty and ending. */
static struct work *take_work(struct work_queue *q)
{
	q->n_idle++;
	while (!q->first && !q->ending)
		pthread_cond_wait(&q->changed, &q->lock);
	q->n_idle--;
	struct work *work = q->first;
	if (work) {
		q->first = work->next;
		if (!q->first)
			q->last = &q->first;
		q->n_waiting--;
	}
	return work;
}

static void *do_queue(void *arg)
{
	struct work_queue *q = arg;
	struct work *work;

	pthread_mutex_lock(&q->lock);
	while ((work = take_work(q))) {
		pthread_mutex_unlock(&q->lock);
		work->run(work);
		pthread_mutex_lock(&q->lock);
	}
	pthread_mutex_unlock(&q->lock);
	return NULL;
}

static int start_queue_thread(struct work_queue *q)
{
	int r = thread_start(&q->threads[q->n], do_queue, q);

	q->n += r == 0;
	return r;
}

int work_queue_new(struct work_queue **ret, unsigned threads, struct brumate_error *err)
{
	struct work_queue *q = calloc(1, sizeof(*q) + threads * sizeof(q->threads[0]));

	if (!q)
		return brumate_fail(err, ENOMEM, "threads: %m");
	q->last = &q->first;
	q->n_max = threads;
	pthread_mutex_init(&q->lock, NULL);
	pthread_cond_init(&q->changed, NULL);
	pthread_mutex_lock(&q->lock);
	int r = start_queue_thread(q);
	pthread_mutex_unlock(&q->lock);
	if (r < 0) {
		work_queue_free(q);
		return brumate_fail(err, -r, "threads: %m");
	}
	*ret = q;
	return 0;
}

void work_queue_add(struct work_queue *q, struct work *work)
{
	work->next = NULL;
	pthread_mutex_lock(&q->lock);
	*q->last = work;
	q->last = &work->next;
	q->n_waiting++;
	if (q->n_waiting > q->n_idle && q->n < q->n_max && !q->ending)
		start_queue_thread(q); /* on failure the existing threads do the work */
	pthread_cond_signal(&q->changed);
	pthread_mutex_unlock(&q->lock);
}

void work_queue_free(struct work_queue *q)
{
	if (!q)
		return;
	pthread_mutex_lock(&q->lock);
	q->ending = true;
	pthread_cond_broadcast(&q->changed);
	pthread_mutex_unlock(&q->lock);
	for (unsigned i = 0; i < q->n; i++)
		pthread_join(q->threads[i], NULL);
	pthread_mutex_destroy(&q->lock);
	pthread_cond_destroy(&q->changed);
	free(q);
}
