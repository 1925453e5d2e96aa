// SPDX-License-Identifier: MIT
/* A few threads and who waits for them; see team.h. */
#include "chunks/team.h"
#include "base/clock.h"
#include "base/machine.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

enum { TICK_MS = 100 };

unsigned team_cores(unsigned most)
{
	unsigned n = machine_cores();

	return n > most ? most : n;
}

static void note(struct team *t, int r, const struct brumate_error *err)
{
	pthread_mutex_lock(&t->lock);
	if (r < 0 && t->r == 0) {
		t->r = r;
		t->err = *err;
	}
	if (r < 0)
		atomic_store(&t->stop, true);
	t->n_running--;
	pthread_cond_signal(&t->ended);
	pthread_mutex_unlock(&t->lock);
}

static void *work(void *arg)
{
	struct team *t = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = t->fn(t->arg, atomic_fetch_add(&t->next_index, 1), &err);

	note(t, r, &err);
	return NULL;
}

int team_start(struct team *t, unsigned n, team_fn fn, void *arg)
{
	sigset_t all, old;
	int r = 0;

	*t = (struct team){ .fn = fn, .arg = arg };
	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_t attributes;
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&t->ended, &attributes);
	pthread_condattr_destroy(&attributes);

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_mutex_lock(&t->lock);
	while (t->n < n && r == 0) {
		r = pthread_create(&t->threads[t->n], NULL, work, t);
		if (r == 0)
			t->n++;
	}
	t->n_running = t->n;
	pthread_mutex_unlock(&t->lock);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return t->n ? 0 : -EAGAIN;
}

/* Waits for a thread's end or a tick. Under the lock. */
static void wait_some(struct team *t)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += TICK_MS * 1000000L;
	if (until.tv_nsec >= 1000000000L) {
		until.tv_nsec -= 1000000000L;
		until.tv_sec++;
	}
	pthread_cond_timedwait(&t->ended, &t->lock, &until);
}

int team_wait(struct team *t, team_tick_fn tick, void *tick_arg, struct brumate_error *err)
{
	int told = 0;

	if (t->n == 0)
		return 0;
	pthread_mutex_lock(&t->lock);
	while (t->n_running) {
		wait_some(t);
		pthread_mutex_unlock(&t->lock);
		if (tick && told == 0 && (told = tick(tick_arg)) < 0)
			atomic_store(&t->stop, true);
		pthread_mutex_lock(&t->lock);
	}
	pthread_mutex_unlock(&t->lock);
	for (unsigned i = 0; i < t->n; i++)
		pthread_join(t->threads[i], NULL);
	t->n = 0;
	pthread_cond_destroy(&t->ended);
	pthread_mutex_destroy(&t->lock);
	if (told < 0)
		return brumate_fail(err, -told, "stopped: %m");
	if (t->r < 0 && err)
		*err = t->err;
	return t->r;
}
