// SPDX-License-Identifier: MIT
/*
 * Driver calls on processes. A batch is shared by the caller that waits for it and its threads, and
 * lives until the last of them lets go, because a call may outlast the caller's deadline: on a
 * stopped process, even a question does. At most one call is under way on a process: the driver is
 * not asked to do two things to it at once.
 */
#include "broker/broker.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { LOCK_GRACE_MS = 1000 }; /* for the driver's own timeout of a lock to be told */

struct act {
	struct batch *batch;
	pid_t pid;
	bool is_calling, is_done; /* its turn came; it ended. Under the lock */
	struct act *next_calling; /* in calls */
	struct act_outcome outcome;
};

struct batch {
	const struct dev_backend *backend;
	enum dev_action action;
	uint64_t deadline_ns;
	struct dev_gpu_pair pairs[DEV_GPUS_MAX];
	size_t n_pairs;
	struct dev_process *processes; /* one for each act: asks about it instead; NULL: acts */
	size_t n_left, n_refs;	       /* under the lock */
	struct act acts[];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed; /* a call ended; on the monotonic clock */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct act *calls; /* under way */
static size_t n_calls;
static uint64_t last_end_ns;

static const struct act_outcome timed_out = {
	.result = { .number = -1, .name = "TIMEOUT" },
	.state = DEV_STATE_UNKNOWN,
};

static void init_cond(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&changed, &attr);
	pthread_condattr_destroy(&attr);
}

/* Under the lock: waits for a change. Returns false when @deadline_ns has passed. */
static bool wait_change(uint64_t deadline_ns)
{
	struct timespec until = deadline_timespec(deadline_ns);

	return pthread_cond_timedwait(&changed, &lock, &until) != ETIMEDOUT;
}

/* Under the lock. */
static bool is_busy(pid_t pid)
{
	for (struct act *a = calls; a; a = a->next_calling)
		if (a->pid == pid)
			return true;
	return false;
}

/* Under the lock: waits until @pid is free. Returns false at the deadline. */
static bool wait_free(pid_t pid, uint64_t deadline_ns)
{
	while (is_busy(pid))
		if (!wait_change(deadline_ns))
			return !is_busy(pid);
	return true;
}

/* Under the lock. */
static void unref(struct batch *b)
{
	if (--b->n_refs == 0) {
		free(b->processes);
		free(b);
	}
}

static bool begin(struct act *a)
{
	pthread_mutex_lock(&lock);
	bool free_now = wait_free(a->pid, a->batch->deadline_ns);
	if (free_now) {
		a->is_calling = true;
		a->next_calling = calls;
		calls = a;
		n_calls++;
	}
	pthread_mutex_unlock(&lock);
	return free_now;
}

static void end(struct act *a, const struct act_outcome *outcome)
{
	struct batch *b = a->batch;

	pthread_mutex_lock(&lock);
	if (a->is_calling) {
		struct act **p = &calls;

		while (*p != a)
			p = &(*p)->next_calling;
		*p = a->next_calling;
		n_calls--;
		last_end_ns = clock_now_ns();
	}
	a->outcome = *outcome;
	a->is_done = true;
	b->n_left--;
	pthread_cond_broadcast(&changed);
	unref(b);
	pthread_mutex_unlock(&lock);
}

static struct act_outcome call_driver(const struct act *a)
{
	const struct batch *b = a->batch;
	struct act_outcome o = { .state = DEV_STATE_UNKNOWN };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int left_ms = deadline_left_ms(b->deadline_ns);
	uint64_t start_ns = clock_now_ns();

	/* To the driver's lock, 0 ms means for ever. */
	int r = dev_act(b->backend, a->pid, b->action, left_ms > 0 ? (uint32_t)left_ms : 1,
			b->pairs, b->n_pairs, &o.result, &err);
	o.seconds = clock_since_s(start_ns);
	if (r < 0) {
		o.result.number = r;
		snprintf(o.result.name, sizeof(o.result.name), "%.63s", err.text);
	}
	if (dev_process_state(b->backend, a->pid, &o.state, NULL) < 0)
		o.state = DEV_STATE_UNKNOWN;
	log_info("%s pid=%d result=%d name=%s seconds=%.3f state=%s", dev_action_name(b->action),
		 (int)a->pid, o.result.number, o.result.name, o.seconds, dev_state_name(o.state));
	return o;
}

static struct act_outcome ask_driver(const struct act *a)
{
	const struct batch *b = a->batch;
	struct dev_process *p = &b->processes[a - b->acts];
	struct brumate_error err;

	if (dev_process(b->backend, a->pid, p, &err) < 0) {
		log_debug("%s", err.text);
		*p = (struct dev_process){ .state = DEV_STATE_UNKNOWN };
	}
	return (struct act_outcome){ .state = p->state };
}

static void *run_act(void *arg)
{
	struct act *a = arg;
	struct act_outcome outcome = timed_out;

	if (begin(a))
		outcome = a->batch->processes ? ask_driver(a) : call_driver(a);
	end(a, &outcome);
	return NULL;
}

static void start_act(struct act *a)
{
	pthread_t thread;
	int r = pthread_create(&thread, NULL, run_act, a);

	if (r == 0) {
		pthread_detach(thread);
		return;
	}
	struct act_outcome failed = { .result.number = -r, .state = DEV_STATE_UNKNOWN };
	snprintf(failed.result.name, sizeof(failed.result.name), "no thread: %s", strerror(r));
	end(a, &failed);
}

static struct batch *batch_new(const struct dev_backend *backend, const pid_t *pids, size_t n,
			       uint32_t timeout_ms)
{
	struct batch *b = calloc(1, sizeof(*b) + n * sizeof(b->acts[0]));
	if (!b)
		return NULL;

	b->backend = backend;
	b->deadline_ns = deadline_in_ms(timeout_ms);
	b->n_left = n;
	b->n_refs = n + 1;
	for (size_t i = 0; i < n; i++) {
		b->acts[i].batch = b;
		b->acts[i].pid = pids[i];
	}
	return b;
}

/* Starts all threads of @b and waits for them. Returns with the lock held; the caller looks at the
 * results, then lets go of both. */
static void run_batch(struct batch *b, size_t n, uint64_t give_up_ns)
{
	for (size_t i = 0; i < n; i++)
		start_act(&b->acts[i]);
	pthread_mutex_lock(&lock);
	while (b->n_left && wait_change(give_up_ns))
		;
}

int acts_run(const struct dev_backend *backend, enum dev_action action, const pid_t *pids, size_t n,
	     uint32_t timeout_ms, const struct dev_gpu_pair *pairs, size_t n_pairs,
	     struct act_outcome *ret, struct brumate_error *err)
{
	pthread_once(&once, init_cond);
	struct batch *b = batch_new(backend, pids, n, timeout_ms);
	if (!b)
		return brumate_fail(err, ENOMEM, "%s: %m", dev_action_name(action));
	b->action = action;
	b->n_pairs = n_pairs;
	if (n_pairs)
		memcpy(b->pairs, pairs, n_pairs * sizeof(pairs[0]));

	run_batch(b, n, b->deadline_ns + (action == DEV_LOCK ? LOCK_GRACE_MS * NS_PER_MS : 0));
	for (size_t i = 0; i < n; i++)
		ret[i] = b->acts[i].is_done ? b->acts[i].outcome : timed_out;
	unref(b);
	pthread_mutex_unlock(&lock);
	return 0;
}

int acts_look(const struct dev_backend *backend, const pid_t *pids, size_t n, uint32_t timeout_ms,
	      struct dev_process *ret, struct brumate_error *err)
{
	pthread_once(&once, init_cond);
	struct batch *b = batch_new(backend, pids, n, timeout_ms);
	if (!b)
		return brumate_fail(err, ENOMEM, "state: %m");
	b->processes = calloc(n + 1, sizeof(*b->processes));
	if (!b->processes) {
		free(b);
		return brumate_fail(err, ENOMEM, "state: %m");
	}

	run_batch(b, n, b->deadline_ns);
	for (size_t i = 0; i < n; i++) {
		ret[i] = (struct dev_process){ .state = DEV_STATE_UNKNOWN };
		if (b->acts[i].is_done && b->acts[i].is_calling)
			ret[i] = b->processes[i];
	}
	unref(b);
	pthread_mutex_unlock(&lock);
	return 0;
}

size_t acts_busy(uint64_t *ret_last_end_ns)
{
	pthread_mutex_lock(&lock);
	size_t n = n_calls;
	*ret_last_end_ns = last_end_ns;
	pthread_mutex_unlock(&lock);
	return n;
}

int acts_drain(uint64_t deadline_ns)
{
	pthread_once(&once, init_cond);
	pthread_mutex_lock(&lock);
	while (n_calls && wait_change(deadline_ns))
		;
	size_t n = n_calls;
	pthread_mutex_unlock(&lock);
	return n ? -ETIMEDOUT : 0;
}
