// SPDX-License-Identifier: MIT
/* Threads with a session each; see pool.h. */
#include "remote/pool.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>

#include "base/clock.h"

enum { TELL_MS = 100 };

struct pool {
	struct client *client;
	pool_fn fn;
	void *arg;
	size_t n;
	atomic_size_t next;

	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned n_running; /* under lock, as is what follows */
	int r;		    /* of the first unit that failed */
	struct brumate_error err;
};

static void note_failure(struct pool *p, int r, const struct brumate_error *err)
{
	pthread_mutex_lock(&p->lock);
	if (p->r == 0) {
		p->r = r;
		p->err = *err;
	}
	pthread_mutex_unlock(&p->lock);
	client_stop(p->client);
}

static void do_units(struct pool *p, struct session *s)
{
	while (!atomic_load(&p->client->stop)) {
		struct brumate_error err = BRUMATE_ERROR_NONE;
		size_t i = atomic_fetch_add(&p->next, 1);

		if (i >= p->n)
			return;
		int r = p->fn(p->arg, s, i, &err);
		if (r < 0) {
			note_failure(p, r, &err);
			return;
		}
	}
}

static void *work(void *arg)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct pool *p = arg;
	struct session s;
	int r = session_init(&s, p->client, &err);

	if (r == 0)
		do_units(p, &s);
	else
		note_failure(p, r, &err);
	session_fini(&s);
	pthread_mutex_lock(&p->lock);
	p->n_running--;
	pthread_cond_signal(&p->ended);
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* Waits for the threads. Returns what the caller's progress function said last. */
static int wait_and_report(struct pool *p, const struct pool_watch *watch)
{
	int r = 0;

	pthread_mutex_lock(&p->lock);
	while (p->n_running) {
		struct timespec until = deadline_timespec(deadline_in_ms(TELL_MS));

		pthread_cond_timedwait(&p->ended, &p->lock, &until);
		if (!watch || !watch->progress || r < 0)
			continue;
		pthread_mutex_unlock(&p->lock);
		r = watch->progress(watch->arg, atomic_load(&p->client->done_bytes),
				    watch->total_bytes);
		if (r < 0)
			client_stop(p->client);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return r;
}

/* Starts as many threads as it can. Returns how many. */
static unsigned start(struct pool *p, pthread_t *threads, unsigned wanted)
{
	sigset_t all, old;
	unsigned n = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_mutex_lock(&p->lock);
	while (n < wanted && pthread_create(&threads[n], NULL, work, p) == 0)
		n++;
	p->n_running = n;
	pthread_mutex_unlock(&p->lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return n;
}

static int run(struct pool *p, const struct pool_watch *watch, struct brumate_error *err)
{
	pthread_t threads[REMOTE_CONNECTIONS_MAX];
	unsigned wanted = (unsigned)p->client->config->connections;
	unsigned n = start(p, threads, p->n < wanted ? (unsigned)p->n : wanted);

	if (n == 0)
		return brumate_fail(err, EAGAIN, "no thread: %m");
	int r = wait_and_report(p, watch);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	client_go_on(p->client);
	if (r < 0)
		return brumate_fail(err, -r, "stopped: %m");
	if (p->r < 0 && err)
		*err = p->err;
	return p->r;
}

int pool_run(struct client *c, size_t n, pool_fn fn, void *arg, const struct pool_watch *watch,
	     struct brumate_error *err)
{
	struct pool p = {
		.client = c, .fn = fn, .arg = arg, .n = n, .lock = PTHREAD_MUTEX_INITIALIZER
	};
	pthread_condattr_t monotonic;

	if (!n)
		return 0;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&p.ended, &monotonic);
	pthread_condattr_destroy(&monotonic);
	int r = run(&p, watch, err);
	pthread_cond_destroy(&p.ended);
	pthread_mutex_destroy(&p.lock);
	return r;
}
