// SPDX-License-Identifier: MIT
/*
 * Allocations of a job of `run --wake` that find no room on a GPU which others have: a server that starts, or one that grows.
 * Each connects (src/interpose/core/room.h) and is answered when it may try again: a neighbour has left, or some time has
 * passed in which others may have. It waits in the same order as a resume does, and for WakeWait= at most; then it is out of
 * memory, as without brumate. Those of a job of `run --share` have nobody leave: they wait behind servers until jobs end or `brumate
 * share` has them leave, and time in which another job is on the GPU does not count.
 */
#include "shim/shim.h"

#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "client/agent.h"
#include "engine/neighbours.h"
#include "engine/turn.h"
#include "job/events.h"

/* After a pause the next allocation is one of its own. */
enum { BACKLOG = 64, LOOK_MS = 50, ANSWER_MS = 300, TOGETHER_MS = 1000 };

struct need {
	struct shim *shim;
	struct loop_source connections;
	struct loop_task task;	    /* serves one; what is below is its */
	uint64_t since_ns, last_ns; /* when the first of several came, and the last was answered */
	uint64_t alone_ns; /* of that time, with no other job on the GPU; of `run --share` */
	bool waits; /* of `run --share`: from one to the next, and while it is suspended meanwhile */
	struct room_turn turn;	  /* the same, but while it is suspended */
	struct loop_source timer; /* then nobody waits any more, unless one has come */
	int asking_fd;		  /* the one that is served; -1: none */
	int listen_fd;		  /* of the shim; borrowed */
};

static void listen_beside_agents(struct shim *s)
{
	int r = shim_listen_beside_agents(s, &s->need_fd, AGENT_NEED_SOCKET, SOCK_SEQPACKET,
					  BACKLOG);

	if (r < 0)
		log_error("no allocation of job %s waits for room: reason=\"%s\"", s->job.id,
			  strerror(-r));
}

static bool is_over(const struct shim *s, uint64_t until_ns)
{
	return s->stopping || !deadline_left_ms(until_ns);
}

/* Until a neighbour has left, or the time for that has passed, in which others may have. */
static void make_room(const struct need *n, const struct brumate_conf *conf)
{
	const struct shim *s = n->shim;
	const uint64_t until_ns = deadline_in_ms(ANSWER_MS);
	struct room_turn turn = TURN_NONE;
	int left = 0;

	turn_take(&turn, &s->job, n->since_ns);
	while (left <= 0 && !is_over(s, until_ns)) {
		struct brumate_error err = BRUMATE_ERROR_NONE;

		left = turn_is_first(&turn)
			       ? neighbours_make_room(
					 &s->job, turn_priority(&turn, job_priority(&s->job, conf)),
					 conf, &err)
			       : 0;
		if (left < 0)
			log_warn("no room is made for an allocation: job=%s reason=\"%s\"",
				 s->job.id, err.text);
		if (left <= 0)
			nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * (long)NS_PER_MS }, NULL);
	}
	turn_end(&turn);
}

/* ---- of a job of `run --share` ---- */

static void tell_event(const struct need *n, const char *other)
{
	const struct job *j = &n->shim->job;
	char reason[JOB_MESSAGE_BYTES];

	snprintf(reason, sizeof(reason), "an allocation waits for room%s%s",
		 *other ? ", as on the same GPU is job " : "", other);
	log_info("job %s: %s", j->id, reason);
	event_add(&j->target, "waits", json_pack("{s:s}", "reason", reason));
}

static bool has_waited_enough(const struct need *n)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	return conf_load(&conf, NULL) < 0 ||
	       (conf.wake_wait_ms && n->waits && n->alone_ns >= conf.wake_wait_ms * NS_PER_MS);
}

/* A longer time is one in which the job was away. */
static uint64_t if_together(uint64_t ns)
{
	return ns < TOGETHER_MS * NS_PER_MS ? ns : 0;
}

/* Whether another job is there, and for how long none has been. While one comes or goes the broker takes its time to say so. */
static void look_in_line(struct need *n)
{
	const struct job *j = &n->shim->job;
	const uint64_t now_ns = clock_now_ns(), since_last_ns = now_ns - n->last_ns;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	char other[JOB_NAME_BYTES];
	const int r = neighbours_are_there(j, other, &err);

	if (r < 0)
		log_warn("job %s waits for room, and who has it is not known: reason=\"%s\"", j->id,
			 err.text);
	if (!n->waits) {
		n->waits = true;
		n->since_ns = now_ns;
		n->alone_ns = 0;
		tell_event(n, other);
	} else if (r <= 0) {
		const uint64_t took_ns = clock_now_ns() - now_ns;

		n->alone_ns += if_together(since_last_ns);
		n->alone_ns +=
			took_ns < TOGETHER_MS * NS_PER_MS ? took_ns : TOGETHER_MS * NS_PER_MS;
	}
	n->last_ns = clock_now_ns();
	turn_take_last(&n->turn, j, n->since_ns);
	turn_is_first(&n->turn); /* which says that it is waited on */
}

/* It is answered first: the job may be saved while it waits, and is connected to nobody then. */
static void keep_in_line(struct need *n)
{
	const char later = AGENT_NEED_LATER;

	if (has_waited_enough(n)) {
		n->waits = false;
		turn_end(&n->turn);
		cleanup_close(&n->asking_fd);
		return;
	}
	send(n->asking_fd, &later, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	cleanup_close(&n->asking_fd);
	look_in_line(n);
}

/* ---- serving ---- */

static void have_others_leave(struct need *n)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	const char again = AGENT_NEED_AGAIN;
	const uint64_t now_ns = clock_now_ns();

	if (now_ns - n->last_ns > TOGETHER_MS * NS_PER_MS)
		n->since_ns = now_ns;
	if (conf_load(&conf, NULL) == 0 &&
	    (!conf.wake_wait_ms || now_ns - n->since_ns < conf.wake_wait_ms * NS_PER_MS)) {
		make_room(n, &conf);
		send(n->asking_fd, &again, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	n->last_ns = clock_now_ns();
	cleanup_close(&n->asking_fd);
}

static void serve(void *arg)
{
	struct need *n = arg;

	if (job_shares(&n->shim->job))
		keep_in_line(n);
	else
		have_others_leave(n);
}

/* A thread that waits on asks again until then. */
static void served(void *arg)
{
	struct need *n = arg;

	if (n->waits)
		loop_after(&n->timer, TOGETHER_MS);
}

static void silence(void *arg)
{
	struct need *n = arg;

	const struct shim_view *v = &n->shim->view;

	if (loop_task_works(&n->task) || v->use != SHIM_FREE) { /* it may be leaving */
		loop_after(&n->timer, TOGETHER_MS);
		return;
	}
	turn_end(&n->turn);
	n->waits = v->state != JOB_RUNNING;
}

void need_begin(struct shim *s)
{
	if (job_wakes(&s->job) || job_shares(&s->job))
		listen_beside_agents(s);
}

static void need_asked(void *arg)
{
	struct need *n = arg;

	n->asking_fd = accept4(n->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (n->asking_fd >= 0 && loop_task_start(n->shim->loop, &n->task, serve, served, n) < 0)
		cleanup_close(&n->asking_fd);
}

static void need_update(void *part)
{
	struct need *n = part;
	struct shim *s = n->shim;
	const struct shim_view *v = &s->view;
	const bool works = loop_task_works(&n->task);

	if (!works && v->use == SHIM_FREE && v->state == JOB_RUNNING && v->kind != SHIM_PLAIN) {
		listen_beside_agents(s);
		n->listen_fd = s->need_fd;
	}
	if (!works && n->waits && v->state == JOB_RUNNING && !loop_has_time(&n->timer))
		loop_after(&n->timer, TOGETHER_MS); /* it is back */
	loop_watch(&n->connections, works ? -1 : n->listen_fd, POLLIN);
}

static void need_start(void *part, struct shim *s)
{
	struct need *n = part;

	n->shim = s;
	n->asking_fd = n->listen_fd = -1;
	n->turn = TURN_NONE;
	loop_add(s->loop, &n->timer, silence, n);
	loop_add(s->loop, &n->connections, need_asked, n);
}

static void need_stop(void *part)
{
	struct need *n = part;

	turn_end(&n->turn);
	cleanup_close(&n->shim->need_fd);
}

const struct shim_part need_part = {
	.size_bytes = sizeof(struct need),
	.start = need_start,
	.update = need_update,
	.stop = need_stop,
};
