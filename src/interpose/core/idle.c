// SPDX-License-Identifier: MIT
/*
 * Waits with a deadline until all contexts are idle. The driver's wait has none, so another thread does
 * it, which is left to itself when the time is up: it ends with the work it waits for.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/thread.h"
#include "interpose/core/agent-ops.h"

enum { STACK_BYTES = 1 << 20 };

struct wait {
	pthread_mutex_t lock;
	pthread_cond_t ended;
	unsigned int refs;
	bool done, given_up;
	size_t n;
	CUcontext contexts[];
};

static void put(struct wait *wait)
{
	bool last;

	pthread_mutex_lock(&wait->lock);
	last = !--wait->refs;
	pthread_mutex_unlock(&wait->lock);
	if (!last)
		return;
	pthread_mutex_destroy(&wait->lock);
	pthread_cond_destroy(&wait->ended);
	free(wait);
}

static bool is_given_up(struct wait *wait)
{
	bool given_up;

	pthread_mutex_lock(&wait->lock);
	given_up = wait->given_up;
	pthread_mutex_unlock(&wait->lock);
	return given_up;
}

static void *run(void *arg)
{
	struct wait *wait = arg;

	gate_exempt();
	capture_relax();
	/* An error is of work that failed: nothing of that context is running any more. */
	for (size_t i = 0; i < wait->n && !is_given_up(wait); i++)
		context_synchronize(wait->contexts[i]);
	pthread_mutex_lock(&wait->lock);
	wait->done = true;
	pthread_cond_signal(&wait->ended);
	pthread_mutex_unlock(&wait->lock);
	put(wait);
	return NULL;
}

static struct wait *wait_new(void)
{
	struct wait *wait;
	size_t n = 0;

	memory_lock();
	for (struct context *c = memory.contexts; c; c = c->next)
		n++;
	wait = calloc(1, sizeof(*wait) + n * sizeof(*wait->contexts));
	for (struct context *c = memory.contexts; c && wait; c = c->next)
		wait->contexts[wait->n++] = c->handle;
	memory_unlock();
	if (!wait)
		return NULL;
	pthread_mutex_init(&wait->lock, NULL);
	pthread_cond_init(&wait->ended, NULL);
	wait->refs = 2;
	return wait;
}

int idle_wait(uint64_t deadline_ns)
{
	struct timespec until = deadline_timespec(deadline_ns);
	struct wait *wait = wait_new();
	int r;

	if (!wait)
		return -ENOMEM;
	r = thread_start_detached(run, wait, STACK_BYTES);
	if (r < 0) {
		wait->refs = 1;
		put(wait);
		return r;
	}
	pthread_mutex_lock(&wait->lock);
	while (!wait->done && !r)
		r = pthread_cond_clockwait(&wait->ended, &wait->lock, CLOCK_MONOTONIC, &until);
	r = wait->done ? 0 : -r;
	wait->given_up = r < 0;
	pthread_mutex_unlock(&wait->lock);
	put(wait);
	return r;
}
