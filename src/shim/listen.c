// SPDX-License-Identifier: MIT
/*
 * A job that is on disk and sleeps (checkpoint --wake): this shim holds the sockets at which it listened. At the first connection the job is
 * restored, as the command would, and is given them back with the connections that wait there. If it cannot be, these are reset, and the
 * next one is the next try, after a pause that is twice as long each time. For want of room it is tried as long as WakeWait= says. A shim
 * that takes over from one that has died listens at the same addresses again.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "engine/steps.h"
#include "job/events.h"

enum { FIRST_PAUSE_MS = 200, PAUSE_MS_MAX = 10000, WAIT_MS_DEFAULT = 60000 };

struct listen {
	struct shim *shim;
	struct loop_source ports[LISTENERS_MAX], timer; /* until which nobody is listened to */
	struct loop_task task;				/* restores the job */
	bool has_failed;				/* the last try, since it was looked at */
	uint64_t pause_ms;
	uint64_t asked_ns; /* when a connection came, and where */
	char at[LISTENER_NAME_BYTES];
};

/* Until nobody is listened to; twice as long the next time. */
static void wait_a_while(struct listen *l)
{
	loop_after(&l->timer, l->pause_ms);
	l->pause_ms = l->pause_ms < PAUSE_MS_MAX / 2 ? 2 * l->pause_ms : PAUSE_MS_MAX;
}

static void tell_event(const struct listen *l)
{
	event_add(&l->shim->job.target, "wake",
		  json_pack("{s:s,s:s,s:f}", "call", "connect", "address", l->at, "seconds",
			    (double)(clock_now_ns() - l->asked_ns) / NS_PER_S));
}

static void fail(struct listen *l, const struct brumate_error *why)
{
	struct shim *s = l->shim;

	for (size_t i = 0; i < s->listeners.n; i++)
		listener_hang_up(&s->listeners, i);
	log_warn("job %s is asked for and cannot be restored: reason=\"%s\"", s->job.id, why->text);
	hooks_failed(s, "wake", why->text);
	snprintf(s->job.message, sizeof(s->job.message),
		 "wake: a connection to %s was reset: %.400s", l->at, why->text);
	job_save(&s->job, NULL);
}

/* As the operation that begin_restore() has begun. */
static void restore(void *arg)
{
	struct listen *l = arg;
	struct shim *s = l->shim;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_(shim_own_fini) struct shim_own own;
	struct op_restore *of = &own.op.restore;
	int r = shim_own_init(&own, s, "restore", &(struct request){ 0 }, REQUEST_RESTORE, &err);
	const uint64_t wait_ms = own.conf.wake_wait_ms;

	own.request.wait_ms = wait_ms && wait_ms < INT32_MAX ? (uint32_t)wait_ms : WAIT_MS_DEFAULT;
	if (r == 0 && !s->job.checkpoint_path)
		r = brumate_fail(&err, ENOENT, "its checkpoint has been removed");
	if (r == 0)
		r = store_open(&of->image, NULL, s->job.checkpoint_path, &err);
	if (r == 0) {
		snprintf(of->of, sizeof(of->of), "%s", s->job.id);
		shim_life_begins(s);
		r = engine_restore(&own.op, &err);
	}
	s->ending = true;
	store_image_fini(&of->image);
	op_finish(&own.op, r);
	if (r == 0) {
		tell_event(l);
		hooks_after(s, &own.conf, &own.op);
		l->pause_ms = FIRST_PAUSE_MS;
	} else {
		l->has_failed = true;
		fail(l, &err);
	}
	shim_end(s);
}

static void stop_watching(struct listen *l)
{
	for (size_t i = 0; i < LISTENERS_MAX; i++)
		loop_watch(&l->ports[i], -1, 0);
}

static void begin_restore(struct listen *l, const char *at)
{
	struct shim *s = l->shim;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	stop_watching(l);
	if (shim_begin_now(s, "restore", 1u << JOB_CHECKPOINTED, &err) < 0)
		return;
	snprintf(l->at, sizeof(l->at), "%s", at);
	l->asked_ns = clock_now_ns();
	int r = loop_task_start(s->loop, &l->task, restore, NULL, l);
	if (r < 0) {
		log_warn("no thread to restore job %s: reason=\"%s\"", s->job.id, strerror(-r));
		wait_a_while(l);
		shim_end(s);
	}
}

static void port_asked(void *arg)
{
	struct listen *l = arg;
	const struct listeners *held = &l->shim->listeners;

	for (size_t i = 0; i < held->n; i++)
		if (l->ports[i].happened) {
			begin_restore(l, held->items[i].name);
			return;
		}
}

/* In the place of those that a dead shim held. */
static void bind_again(struct listen *l)
{
	struct shim *s = l->shim;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (shim_begin_now(s, "listening", 1u << JOB_CHECKPOINTED, &err) < 0)
		return;
	if (listeners_bind(&s->listeners, s->job.ports, &err) < 0) {
		log_warn("nobody wakes job %s yet: reason=\"%s\"", s->job.id, err.text);
		wait_a_while(l);
	}
	shim_end(s);
}

static void listen_update(void *part)
{
	struct listen *l = part;
	struct shim *s = l->shim;
	const struct shim_view *v = &s->view;

	if (loop_task_works(&l->task) || v->use != SHIM_FREE)
		return;
	if (l->has_failed)
		wait_a_while(l);
	l->has_failed = false;
	if (!v->listens) {
		stop_watching(l);
		return;
	}
	if (loop_has_time(&l->timer))
		return;
	if (!s->listeners.n)
		bind_again(l);
	for (size_t i = 0; i < s->listeners.n; i++)
		loop_watch(&l->ports[i], s->listeners.items[i].fd, POLLIN);
}

/* Of another program, which keeps copies of what is held, and gives them back where they have died with a shim. */
int listen_hold_method(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	auto_(listeners_fini) struct listeners given = LISTENERS_EMPTY, copies = LISTENERS_EMPTY;
	struct shim *s = arg;
	int fds[LISTENERS_MAX], fd, r = 0;
	(void)parameters;

	for (size_t i = 0; r == 0 && (fd = wire_call_take_fd(call, i)) >= 0; i++)
		r = listeners_add(&given, fd, err);
	if (r == 0)
		r = shim_begin(s, "hold", 1u << JOB_CHECKPOINTED, err);
	if (r < 0)
		return r;
	if (!s->listeners.n && given.n && listeners_are_at(&given, s->job.ports))
		s->listeners = take_struct(given, LISTENERS_EMPTY);
	while (copies.n < s->listeners.n) {
		const size_t i = copies.n++;

		copies.items[i] = s->listeners.items[i];
		fds[i] = copies.items[i].fd = fcntl(copies.items[i].fd, F_DUPFD_CLOEXEC, 3);
		if (fds[i] < 0)
			r = brumate_fail(err, errno, "a copy of a socket: %m");
	}
	shim_end(s);
	return r < 0 ? r : wire_reply_fds(call, NULL, fds, copies.n);
}

static bool listen_needs_shim(const void *part)
{
	return ((const struct listen *)part)->shim->view.listens;
}

static void listen_start(void *part, struct shim *s)
{
	struct listen *l = part;

	l->shim = s;
	l->pause_ms = FIRST_PAUSE_MS;
	loop_add(s->loop, &l->timer, NULL, NULL); /* listen_update() looks */
	for (size_t i = 0; i < LISTENERS_MAX; i++)
		loop_add(s->loop, &l->ports[i], port_asked, l);
}

static void listen_stop(void *part)
{
	struct listen *l = part;

	listeners_fini(&l->shim->listeners);
}

const struct shim_part listen_part = {
	.size_bytes = sizeof(struct listen),
	.start = listen_start,
	.update = listen_update,
	.needs_shim = listen_needs_shim,
	.stop = listen_stop,
};
