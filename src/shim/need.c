// SPDX-License-Identifier: MIT
/*
 * Allocations of a job of `run --wake` that find no room on a GPU which others have: a server that starts, or one that grows.
 * Each connects (src/interpose/core/room.h) and is answered when it may try again: a neighbour has left, or some time has
 * passed in which others may have. It waits in the same order as a resume does, and for WakeWait= at most; then it is out of
 * memory, as without brumate.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "client/agent.h"
#include "engine/neighbours.h"
#include "engine/turn.h"

/* After a pause the next allocation is one of its own. */
enum { BACKLOG = 64, LOOK_MS = 50, ANSWER_MS = 300, TOGETHER_MS = 1000 };

void need_init(struct shim *s)
{
	s->need.listen_fd = s->need.asking_fd = -1;
}

static void listen_beside_agents(struct shim *s)
{
	int r = shim_listen_beside_agents(s, &s->need.listen_fd, AGENT_NEED_SOCKET, SOCK_SEQPACKET,
					  BACKLOG);

	if (r < 0)
		log_error("no allocation of job %s waits for room: reason=\"%s\"", s->job.id,
			  strerror(-r));
}

static bool is_over(const struct shim *s, uint64_t until_ns)
{
	return s->need.stop || !deadline_left_ms(until_ns);
}

/* Until a neighbour has left, or the time for that has passed, in which others may have. */
static void make_room(struct shim *s, const struct brumate_conf *conf)
{
	const uint64_t until_ns = deadline_in_ms(ANSWER_MS);
	struct room_turn turn = TURN_NONE;
	int left = 0;

	turn_take(&turn, &s->job, s->need.since_ns);
	while (left <= 0 && !is_over(s, until_ns)) {
		struct brumate_error err = BRUMATE_ERROR_NONE;

		left = turn_is_first(&turn) ? neighbours_make_room(&s->job, conf, &err) : 0;
		if (left < 0)
			log_warn("no room is made for an allocation: job=%s reason=\"%s\"",
				 s->job.id, err.text);
		if (left <= 0)
			nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * (long)NS_PER_MS }, NULL);
	}
	turn_end(&turn);
}

static void *serve(void *arg)
{
	struct shim *s = arg;
	struct shim_need *n = &s->need;
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	const char again = AGENT_NEED_AGAIN;
	const uint64_t now_ns = clock_now_ns();

	if (now_ns - n->last_ns > TOGETHER_MS * NS_PER_MS)
		n->since_ns = now_ns;
	if (conf_load(&conf, NULL) == 0 &&
	    (!conf.wake_wait_ms || now_ns - n->since_ns < conf.wake_wait_ms * NS_PER_MS)) {
		make_room(s, &conf);
		send(n->asking_fd, &again, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
	}
	n->last_ns = clock_now_ns();
	cleanup_close(&n->asking_fd);
	n->task.state = TASK_DONE;
	shim_wake(s);
	return NULL;
}

void need_begin(struct shim *s)
{
	if (job_wakes(&s->job))
		listen_beside_agents(s);
}

void need_asked(struct shim *s)
{
	struct shim_need *n = &s->need;

	task_join(&n->task);
	n->asking_fd = accept4(n->listen_fd, NULL, NULL, SOCK_CLOEXEC);
	if (n->asking_fd < 0)
		return;
	if (task_start(&n->task, serve, s) < 0)
		cleanup_close(&n->asking_fd);
}

void need_update(struct shim *s)
{
	struct shim_need *n = &s->need;

	if (n->task.state == TASK_WORKING)
		return;
	task_join(&n->task);
	pthread_mutex_lock(&s->lock);
	const bool can = !s->busy && s->job.state == JOB_RUNNING && job_wakes(&s->job);
	pthread_mutex_unlock(&s->lock);
	if (can)
		listen_beside_agents(s);
}

void need_fini(struct shim *s)
{
	s->need.stop = true;
	task_join(&s->need.task);
	cleanup_close(&s->need.listen_fd);
}
