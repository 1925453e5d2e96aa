// SPDX-License-Identifier: MIT
/*
 * Loads the vendor driver and makes driver calls on processes. A batch of calls is shared by the caller that waits
 * for it and the threads that make the calls. It lives until the last of them has released it, because a call may
 * outlast the caller's deadline: on a stopped process even a query does. See driver.h.
 */
#include "broker/driver.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LOCK_GRACE_MS = 1000 }; /* so that the driver's own timeout of a lock is reported */

/* One process of a batch. */
struct batch_process {
	struct batch *batch;
	pid_t pid;
	enum {
		TARGET_WAITS,
		TARGET_CALLS,
		TARGET_ANSWERED,
		TARGET_LATE
	} state;			    /* under the driver's lock */
	struct batch_process *next_calling; /* in the driver's list of calls under way */
	struct broker_outcome outcome;
};

struct batch {
	struct driver *driver;
	struct driver_call call;
	uint64_t deadline_ns;
	struct dev_process *processes; /* query each target instead; NULL: make the call */
	size_t n_left, n_refs;	       /* under the driver's lock */
	struct batch_process targets[];
};

struct driver {
	const struct gpu_vendor *vendor;
	const struct dev_backend *backend;
	struct dev_libraries libraries;
	struct loop *loop;
	pthread_t thread; /* initialises the driver */

	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	bool initialised;
	int result; /* of the initialisation */
	struct dev_info info;
	struct brumate_error err;

	struct batch_process *calling;
	size_t n_calls; /* threads that make a call, or are about to */
	uint64_t last_end_ns, n_done[DEV_ACTION__MAX];
};

static const struct broker_outcome timed_out = {
	.result = { .number = -1, .name = "TIMEOUT" },
	.state = DEV_STATE_UNKNOWN,
};

/* ---- loading it ---- */

static void *run_initialise(void *arg)
{
	struct driver *d = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct dev_info info = { 0 };
	int r = dev_open(d->backend, &d->libraries, &info, &err);

	pthread_mutex_lock(&d->lock);
	d->info = info;
	d->err = err;
	d->result = r;
	d->initialised = true;
	pthread_cond_broadcast(&d->changed);
	pthread_mutex_unlock(&d->lock);

	if (r < 0) {
		log_error("%s", err.text);
		loop_wake(d->loop);
	} else {
		log_info("driver ready version=%s api=%d simulated=%d seconds=%.3f",
			 info.driver_version, info.api_version, info.simulated, info.init_seconds);
	}
	return NULL;
}

int driver_new(struct driver **ret, const struct gpu_vendor *vendor,
	       const struct dev_libraries *libraries, struct loop *loop, struct brumate_error *err)
{
	struct driver *d = calloc(1, sizeof(*d));

	if (!d)
		return brumate_fail(err, ENOMEM, "%m");
	d->vendor = vendor;
	d->backend = vendor->backend;
	d->libraries = *libraries;
	d->loop = loop;
	pthread_mutex_init(&d->lock, NULL);
	condition_init(&d->changed);
	int r = thread_start(&d->thread, run_initialise, d);
	if (r < 0) {
		free(d);
		return brumate_fail(err, -r, "thread for the driver: %m");
	}
	*ret = d;
	return 0;
}

void driver_free(struct driver *d)
{
	if (!d)
		return;
	pthread_join(d->thread, NULL);
	pthread_mutex_destroy(&d->lock);
	pthread_cond_destroy(&d->changed);
	free(d);
}

int driver_wait(struct driver *d, const struct dev_backend **ret, struct dev_info *ret_info,
		struct brumate_error *err)
{
	pthread_mutex_lock(&d->lock);
	while (!d->initialised)
		pthread_cond_wait(&d->changed, &d->lock);
	int r = d->result;
	if (r < 0 && err)
		*err = d->err;
	if (r == 0 && ret_info)
		*ret_info = d->info;
	pthread_mutex_unlock(&d->lock);
	if (r == 0)
		*ret = d->backend;
	return r;
}

const struct gpu_vendor *driver_vendor(const struct driver *d)
{
	return d->vendor;
}

bool driver_has_failed(struct driver *d)
{
	pthread_mutex_lock(&d->lock);
	bool failed = d->initialised && d->result < 0;
	pthread_mutex_unlock(&d->lock);
	return failed;
}

/* ---- one call ---- */

/* Under the lock: waits for a change. Returns false when @deadline_ns has passed. */
static bool wait_change(struct driver *d, uint64_t deadline_ns)
{
	struct timespec until = deadline_timespec(deadline_ns);

	return pthread_cond_timedwait(&d->changed, &d->lock, &until) != ETIMEDOUT;
}

/* Under the lock. */
static bool is_busy(const struct driver *d, pid_t pid)
{
	for (const struct batch_process *t = d->calling; t; t = t->next_calling)
		if (t->pid == pid)
			return true;
	return false;
}

/* Under the lock: waits until no call is under way on @pid. Returns false at the deadline. */
static bool wait_free(struct driver *d, pid_t pid, uint64_t deadline_ns)
{
	while (is_busy(d, pid))
		if (!wait_change(d, deadline_ns))
			return !is_busy(d, pid);
	return true;
}

/* Under the lock. */
static void unref_batch(struct batch *b)
{
	if (--b->n_refs == 0) {
		free(b->processes);
		free(b);
	}
}

static bool begin_call(struct batch_process *t)
{
	struct driver *d = t->batch->driver;

	pthread_mutex_lock(&d->lock);
	bool may = wait_free(d, t->pid, t->batch->deadline_ns);
	if (may) {
		t->state = TARGET_CALLS;
		t->next_calling = d->calling;
		d->calling = t;
	}
	pthread_mutex_unlock(&d->lock);
	return may;
}

static void end_call(struct batch_process *t, const struct broker_outcome *outcome)
{
	struct batch *b = t->batch;
	struct driver *d = b->driver;

	pthread_mutex_lock(&d->lock);
	if (t->state == TARGET_CALLS) {
		struct batch_process **at = &d->calling;

		while (*at != t)
			at = &(*at)->next_calling;
		*at = t->next_calling;
	}
	d->n_calls--;
	d->last_end_ns = clock_now_ns();
	if (!b->processes)
		d->n_done[b->call.action]++;
	t->outcome = *outcome;
	t->state = t->state == TARGET_CALLS ? TARGET_ANSWERED : TARGET_LATE;
	b->n_left--;
	pthread_cond_broadcast(&d->changed);
	unref_batch(b);
	pthread_mutex_unlock(&d->lock);
}

static struct broker_outcome call_driver(const struct batch_process *t)
{
	const struct batch *b = t->batch;
	const struct dev_backend *backend = b->driver->backend;
	struct broker_outcome o = { .state = DEV_STATE_UNKNOWN };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int left_ms = deadline_left_ms(b->deadline_ns);
	uint64_t start_ns = clock_now_ns();

	/* In the driver's lock call, 0 ms means no timeout. */
	int r = dev_act(backend, t->pid, b->call.action, left_ms > 0 ? (uint32_t)left_ms : 1,
			b->call.pairs, b->call.n_pairs, &o.result, &err);
	o.seconds = clock_since_s(start_ns);
	if (r < 0) {
		o.result.number = r;
		snprintf(o.result.name, sizeof(o.result.name), "%.63s", err.text);
	}
	if (dev_process_state(backend, t->pid, &o.state, NULL) < 0)
		o.state = DEV_STATE_UNKNOWN;
	log_info("%s pid=%d result=%d name=%s seconds=%.3f state=%s",
		 dev_action_name(b->call.action), (int)t->pid, o.result.number, o.result.name,
		 o.seconds, dev_state_name(o.state));
	return o;
}

static struct broker_outcome ask_driver(const struct batch_process *t)
{
	const struct batch *b = t->batch;
	struct dev_process *p = &b->processes[t - b->targets];
	struct brumate_error err;

	if (dev_process(b->driver->backend, t->pid, p, &err) < 0) {
		log_debug("%s", err.text);
		*p = (struct dev_process){ .state = DEV_STATE_UNKNOWN };
	}
	return (struct broker_outcome){ .state = p->state };
}

static void *run_target(void *arg)
{
	struct batch_process *t = arg;
	struct broker_outcome outcome = timed_out;

	if (begin_call(t))
		outcome = t->batch->processes ? ask_driver(t) : call_driver(t);
	end_call(t, &outcome);
	return NULL;
}

static void start_target(struct batch_process *t)
{
	struct driver *d = t->batch->driver;

	pthread_mutex_lock(&d->lock);
	d->n_calls++;
	pthread_mutex_unlock(&d->lock);
	int r = thread_start_detached(run_target, t, 0);
	if (r == 0)
		return;
	struct broker_outcome failed = { .result.number = r, .state = DEV_STATE_UNKNOWN };
	snprintf(failed.result.name, sizeof(failed.result.name), "no thread: %s", strerror(-r));
	end_call(t, &failed);
}

/* ---- batches ---- */

static struct batch *batch_new(struct driver *d, const struct driver_call *call, const pid_t *pids,
			       size_t n)
{
	struct batch *b = calloc(1, sizeof(*b) + n * sizeof(b->targets[0]));
	if (!b)
		return NULL;

	b->driver = d;
	b->call = *call;
	b->deadline_ns = deadline_in_ms(call->timeout_ms);
	b->n_left = n;
	b->n_refs = n + 1;
	for (size_t i = 0; i < n; i++) {
		b->targets[i].batch = b;
		b->targets[i].pid = pids[i];
	}
	return b;
}

/* Starts all threads of @b and waits for them. Returns with the lock held: the caller reads the results, then
 * releases the batch and the lock. */
static void run_batch(struct batch *b, size_t n, uint64_t give_up_ns)
{
	for (size_t i = 0; i < n; i++)
		start_target(&b->targets[i]);
	pthread_mutex_lock(&b->driver->lock);
	while (b->n_left && wait_change(b->driver, give_up_ns))
		;
}

int driver_run(struct driver *d, const struct driver_call *call, const pid_t *pids, size_t n,
	       struct broker_outcome *ret, struct brumate_error *err)
{
	struct batch *b = batch_new(d, call, pids, n);
	if (!b)
		return brumate_fail(err, ENOMEM, "%s: %m", dev_action_name(call->action));

	run_batch(b, n,
		  b->deadline_ns + (call->action == DEV_LOCK ? LOCK_GRACE_MS * NS_PER_MS : 0));
	for (size_t i = 0; i < n; i++) {
		ret[i] = b->targets[i].state >= TARGET_ANSWERED ? b->targets[i].outcome : timed_out;
		ret[i].pid = pids[i];
	}
	unref_batch(b);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

int driver_look(struct driver *d, const pid_t *pids, size_t n, uint32_t timeout_ms,
		struct dev_process *ret, struct brumate_error *err)
{
	const struct driver_call question = { .timeout_ms = timeout_ms };
	struct batch *b = batch_new(d, &question, pids, n);
	if (!b)
		return brumate_fail(err, ENOMEM, "state: %m");
	b->processes = calloc(n + 1, sizeof(*b->processes));
	if (!b->processes) {
		free(b);
		return brumate_fail(err, ENOMEM, "state: %m");
	}

	run_batch(b, n, b->deadline_ns);
	for (size_t i = 0; i < n; i++) {
		ret[i] = b->targets[i].state == TARGET_ANSWERED
				 ? b->processes[i]
				 : (struct dev_process){ .state = DEV_STATE_UNKNOWN };
		ret[i].pid = pids[i];
	}
	unref_batch(b);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

uint64_t driver_done(struct driver *d, enum dev_action action)
{
	pthread_mutex_lock(&d->lock);
	uint64_t n = d->n_done[action];
	pthread_mutex_unlock(&d->lock);
	return n;
}

size_t driver_busy(struct driver *d, uint64_t *ret_last_end_ns)
{
	pthread_mutex_lock(&d->lock);
	size_t n = d->n_calls;
	*ret_last_end_ns = d->last_end_ns;
	pthread_mutex_unlock(&d->lock);
	return n;
}

int driver_drain(struct driver *d, uint64_t deadline_ns)
{
	pthread_mutex_lock(&d->lock);
	while (d->n_calls && wait_change(d, deadline_ns))
		;
	size_t n = d->n_calls;
	pthread_mutex_unlock(&d->lock);
	return n ? -ETIMEDOUT : 0;
}
