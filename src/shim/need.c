// SPDX-License-Identifier: MIT
/*
 * Allocations of a job of `run --wake` that find no room on a GPU which others have: a server that starts, or one that grows.
 * Each connects (src/interpose/core/room.h) and is answered when it may try again: a neighbour has left, or some time has
 * passed in which others may have. It waits in the same order as a resume does, and for WakeWait= at most; then it is out of
 * memory, as without brumate.
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

/* After a pause the next allocation is one of its own. */
enum { BACKLOG = 64, LOOK_MS = 50, ANSWER_MS = 300, TOGETHER_MS = 1000 };

struct need {
	struct shim *shim;
	struct loop_source connections;
	struct loop_task task;	    /* serves one; what is below is its */
	uint64_t since_ns, last_ns; /* when the first of several came, and the last */
	int asking_fd;		    /* the one that is served; -1: none */
	int listen_fd;		    /* of the shim; borrowed */
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

static void serve(void *arg)
{
	struct need *n = arg;
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

void need_begin(struct shim *s)
{
	if (job_wakes(&s->job))
		listen_beside_agents(s);
}

static void need_asked(void *arg)
{
	struct need *n = arg;

	n->asking_fd = accept4(n->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (n->asking_fd >= 0 && loop_task_start(n->shim->loop, &n->task, serve, NULL, n) < 0)
		cleanup_close(&n->asking_fd);
}

static void need_update(void *part)
{
	struct need *n = part;
	struct shim *s = n->shim;
	const struct shim_view *v = &s->view;
	const bool works = loop_task_works(&n->task);

	if (!works && v->use == SHIM_FREE && v->state == JOB_RUNNING && v->wakes) {
		listen_beside_agents(s);
		n->listen_fd = s->need_fd;
	}
	loop_watch(&n->connections, works ? -1 : n->listen_fd, POLLIN);
}

static void need_start(void *part, struct shim *s)
{
	struct need *n = part;

	n->shim = s;
	n->asking_fd = n->listen_fd = -1;
	loop_add(s->loop, &n->connections, need_asked, n);
}

static void need_stop(void *part)
{
	cleanup_close(&((struct need *)part)->shim->need_fd);
}

const struct shim_part need_part = {
	.size_bytes = sizeof(struct need),
	.start = need_start,
	.update = need_update,
	.stop = need_stop,
};
