// SPDX-License-Identifier: MIT
/*
 * A job of `run --wake` that is suspended: its processes run on, and the first call that waits at a closed gate sends a packet
 * (src/interpose/core/wake.h). The shim then resumes its own job, as the command would. What fails is tried again, with a
 * pause that is twice as long each time, for as long as a call waits. A packet is no more than a reason to look: one that came
 * while the job was on its GPUs says nothing of later.
 */
#include "shim/shim.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "client/agent.h"
#include "engine/gpu-set.h"
#include "engine/turn.h"
#include "job/events.h"

/* Packets that come in one go, at most: of all processes of a job, each sends one a second. */
enum {
	PACKETS_MAX = 64,
	NOTED_AFTER_S = 2,
	SILENCE_S = 5 * AGENT_LOOKS_S,
	FIRST_PAUSE_MS = 50,
	ROOM_PAUSE_MS_MAX = 200,
	PAUSE_MS_MAX = 5000
};

struct wake {
	struct shim *shim;
	struct loop_source packets, timer; /* when to try again */
	struct loop_task task; /* resumes the job; what is below may be its, but for the call */
	int listen_fd;	       /* calls that wait say so there; -1: nobody listens */
	bool waits;	       /* a call waits, as far as is known */
	bool lacks_room;       /* the last try failed for want of it */
	bool stuck;	       /* for longer than WakeWait= */
	uint64_t pause_ms;     /* before the next try */
	struct room_turn turn; /* among those that wait for room */
	uint64_t since_ns,
		heard_ns; /* since when a call waits, and when that came last; 0: it has not */
	char call[AGENT_CALL_BYTES];
	pid_t pid; /* whose it is, in its own pid namespace */
};

static void listen_beside_agents(struct wake *w)
{
	struct shim *s = w->shim;
	int r = shim_listen_beside_agents(s, &w->listen_fd, AGENT_WAKE_SOCKET, SOCK_DGRAM, 0);

	loop_watch(&w->packets, w->listen_fd, POLLIN);
	if (r < 0)
		log_error("no call wakes job %s: reason=\"%s\"", s->job.id, strerror(-r));
}

static double waited_s(const struct wake *w)
{
	return (double)(clock_now_ns() - w->since_ns) / NS_PER_S;
}

/* Each reason once, and that it has taken too long, too. */
static void note_failure(struct wake *w, const struct brumate_conf *conf,
			 const struct brumate_error *err)
{
	struct job *job = &w->shim->job;
	char text[JOB_MESSAGE_BYTES];
	const bool stuck = conf->wake_wait_ms &&
			   clock_now_ns() - w->since_ns >= conf->wake_wait_ms * NS_PER_MS;

	/* Neighbours that leave take a moment, which is none to speak of. */
	if (w->lacks_room && !stuck && waited_s(w) < NOTED_AFTER_S)
		return;
	snprintf(text, sizeof(text), "%s: a call of process %d (%s) waits for the GPU: %.400s",
		 stuck ? "stuck" : "wake", w->pid, *w->call ? w->call : "?", err->text);
	if (!strcmp(job->message, text) || (w->lacks_room && stuck == w->stuck && job->message[0]))
		return;
	w->stuck = stuck;
	log_warn("a job is asked for and cannot be resumed yet: job=%s reason=\"%s\"", job->id,
		 err->text);
	hooks_failed(w->shim, stuck ? "wake, which is stuck" : "wake", err->text);
	snprintf(job->message, sizeof(job->message), "%s", text);
	job_save(job, NULL);
}

static void tell_event(const struct wake *w)
{
	event_add(&w->shim->job.target, "wake",
		  json_pack("{s:s,s:i,s:f}", "call", w->call, "pid", (int)w->pid, "seconds",
			    waited_s(w)));
}

/* As the preflight of a resume does: without room that fails each time. */
static int make_room(struct wake *w, struct brumate_error *err)
{
	struct shim *s = w->shim;
	const struct progress_caller caller = { .arg = s, .is_cancelled = shim_is_stopping };
	auto_(op_fini) struct op op;
	int r = turn_take(&w->turn, &s->job, w->since_ns);

	op_init(&op, "resume", &s->job.target, &caller, NULL);
	op.data.vault = &s->vault;
	if (r < 0)
		log_warn("job %s waits for room without a turn: reason=\"%s\"", s->job.id,
			 strerror(-r));
	r = gpu_set_open(&op.gpus, err);
	if (r == 0)
		r = placement_map(op.target, &op.gpus, &op.progress, err);
	return r < 0 ? r : placement_make_room(&op, &w->turn, err);
}

/* As the operation that begin_resume() has begun. */
static void resume(void *arg)
{
	struct wake *w = arg;
	struct shim *s = w->shim;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const struct request asked = { .keep_copy = true }; /* it will be suspended again */
	auto_(shim_own_fini) struct shim_own own;
	const int room = make_room(w, &err);
	int r = shim_own_init(&own, s, "resume", &asked, REQUEST_RESUME, room < 0 ? NULL : &err);

	if (room == 0 && r == 0)
		r = engine_resume(&own.op, &err);
	s->ending = true; /* by the record it runs: who reads that and asks for more waits */
	if (room == 0)
		op_finish(&own.op, r);
	else
		r = room;
	w->lacks_room = r == -ENOSPC;
	if (r == 0) {
		tell_event(w);
		hooks_after(s, &own.conf, &own.op);
	} else {
		note_failure(w, &own.conf, &err);
	}
	if (!w->lacks_room)
		turn_end(&w->turn);
	shim_end(s);
}

/* The next try, unless this one succeeds: then nothing waits any more. */
static void prepare_next(struct wake *w)
{
	loop_after(&w->timer, w->pause_ms);
	const uint32_t most = w->lacks_room ? ROOM_PAUSE_MS_MAX : PAUSE_MS_MAX;

	w->pause_ms = w->pause_ms < most / 2 ? 2 * w->pause_ms : most;
}

static void begin_resume(struct wake *w)
{
	struct shim *s = w->shim;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	prepare_next(w);
	w->waits = false; /* until the next packet, if this fails: what has waited may have ended */
	if (shim_begin_now(s, "resume", 1u << JOB_SUSPENDED, &err) < 0)
		return;
	int r = loop_task_start(s->loop, &w->task, resume, NULL, w);
	if (r < 0) {
		log_warn("no thread to resume job %s: reason=\"%s\"", s->job.id, strerror(-r));
		shim_end(s);
	}
}

static void forget_call(struct wake *w)
{
	w->waits = w->lacks_room = w->stuck = false;
	w->heard_ns = 0;
	turn_end(&w->turn);
	w->pause_ms = FIRST_PAUSE_MS;
	loop_never(&w->timer);
}

/* A job that only lacks room is looked at more often than packets come. */
static bool still_waits(const struct wake *w)
{
	return w->lacks_room && clock_now_ns() - w->heard_ns < SILENCE_S * NS_PER_S;
}

static void wake_update(void *part)
{
	struct wake *w = part;
	const struct shim_view *v = &w->shim->view;

	if (loop_task_works(&w->task) || v->use != SHIM_FREE || !v->wakes ||
	    (v->state != JOB_RUNNING && v->state != JOB_SUSPENDED))
		return;
	listen_beside_agents(w);
	if (v->state == JOB_RUNNING)
		forget_call(w);
	else if (!loop_has_time(&w->timer) && (w->waits || still_waits(w)))
		begin_resume(w);
	else if (!loop_has_time(&w->timer))
		turn_end(&w->turn);
}

/* Any process of the job may send here, and so what came is taken with care. */
static void wake_asked(void *arg)
{
	struct wake *w = arg;

	for (int i = 0; i < PACKETS_MAX; i++) {
		struct agent_wake packet;
		ssize_t n = recv(w->listen_fd, &packet, sizeof(packet), MSG_DONTWAIT);

		if (n < 0)
			return;
		if (n != sizeof(packet))
			continue;
		if (clock_now_ns() - w->heard_ns > SILENCE_S * NS_PER_S)
			w->since_ns = clock_now_ns();
		w->heard_ns = clock_now_ns();
		w->waits = true;
		w->pid = packet.pid;
		packet.call[sizeof(packet.call) - 1] = '\0';
		snprintf(w->call, sizeof(w->call), "%.*s",
			 (int)strspn(
				 packet.call,
				 "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789"),
			 packet.call);
	}
}

static void wake_start(void *part, struct shim *s)
{
	struct wake *w = part;

	w->shim = s;
	w->listen_fd = -1;
	w->turn = TURN_NONE;
	w->pause_ms = FIRST_PAUSE_MS;
	loop_add(s->loop, &w->packets, wake_asked, w);
	loop_add(s->loop, &w->timer, NULL, NULL); /* wake_update() tries */
}

static void wake_stop(void *part)
{
	struct wake *w = part;

	turn_end(&w->turn);
	cleanup_close(&w->listen_fd);
}

const struct shim_part wake_part = {
	.size_bytes = sizeof(struct wake),
	.start = wake_start,
	.update = wake_update,
	.stop = wake_stop,
};
