// SPDX-License-Identifier: MIT
/* Waiting for the device memory that a job needs to come back. See gpu-set.h. */
#include "engine/op.h"

#include <errno.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "client/peer.h"
#include "client/shim.h"
#include "engine/neighbours.h"
#include "engine/turn.h"

enum {
	LOOK_FIRST_MS = 20,
	LOOK_MOST_MS = 500,
	LEAVING_LOOK_MS = 20,
	STILL_LOOK_MS = 500,
	STILL_LOOKS = 3, /* in a row, that must find it stopped */
};

/* While others wait before it, a job has no room, however much is free. */
static int look(struct op *op, const struct room_turn *turn, struct brumate_error *err)
{
	if (turn_is_first(turn))
		return placement_check_room(op->target, &op->gpus, op->data.vault, err);
	brumate_fail(err, ENOSPC, "other jobs wait for the same GPU before job %s", op->target->id);
	brumate_error_exit(err, EXIT_NO_ROOM);
	return -ENOSPC;
}

/* Returns 1 if a neighbour has left. */
static int have_one_leave(const struct room_turn *turn, const struct target *target)
{
	const struct job *job = job_of_target(target);
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = job && turn_is_first(turn) ? conf_load(&conf, &why) : -EAGAIN;

	if (r == 0)
		r = neighbours_make_room(job, turn_priority(turn, job_priority(job, &conf)), &conf,
					 &why);
	if (r < 0 && r != -EAGAIN)
		log_warn("no neighbour leaves: job=%s reason=\"%s\"", target->id, why.text);
	return r;
}

static int check_going_on(struct op *op, struct brumate_error *err)
{
	int r = progress_check(&op->progress, err);

	if (r == 0 && op->target->state != JOB_RESTORING && target_has_ended(op->target))
		return brumate_fail(err, ESRCH, "job %s has ended", op->target->id);
	return r;
}

int placement_make_room(struct op *op, const struct room_turn *turn, struct brumate_error *err)
{
	for (;;) {
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = look(op, turn, &why), left = 0;

		if (r == -ENOSPC && (left = check_going_on(op, err)) == 0)
			left = have_one_leave(turn, op->target) == 1;
		if (left == 1)
			continue;
		if (left == 0 && r < 0 && err)
			*err = why;
		return left < 0 ? left : r;
	}
}

/* Whether the job that leaves for this one has nothing left to give. */
static bool has_left(const char *id)
{
	auto_(job_fini) struct job j = JOB_EMPTY;

	return job_load(&j, id, NULL) < 0 ||
	       (j.state != JOB_RUNNING && !job_state_is_passing(j.state)) || job_has_ended(&j);
}

/* The shim of the job that leaves for this one. */
struct leaver {
	const char *id;
	struct peer shim;
	unsigned n_still;
	uint64_t look_ns; /* when to look next */
};

/* It may have ended, and another one come. */
static void find_shim(struct leaver *l)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct wire w;

	l->shim = PEER_NONE;
	if (job_load(&j, l->id, NULL) < 0 || shim_find(&w, &j, NULL) < 0)
		return;
	l->shim.id = shim_identify(&w);
	wire_fini(&w);
}

/* -EHOSTDOWN: it stands still, and nobody knows whether it ever goes on. */
static int check_leaver(struct leaver *l, struct brumate_error *err)
{
	if (deadline_left_ms(l->look_ns))
		return 0;
	l->look_ns = deadline_in_ms(STILL_LOOK_MS);
	if (!l->shim.id.pid || proc_has_ended(l->shim.id))
		find_shim(l);
	l->n_still = peer_stands_still(&l->shim) ? l->n_still + 1 : 0;
	if (l->n_still < STILL_LOOKS)
		return 0;
	brumate_fail(err, EHOSTDOWN, "the shim of the job that is to leave, process %d, stands still",
		     l->shim.id.pid);
	brumate_error_exit(err, EXIT_FROZEN);
	brumate_hint(err, "kill -CONT %d lets it go on, if a signal stopped it", l->shim.id.pid);
	return -EHOSTDOWN;
}

static int fail_no_room(const struct request *request, struct brumate_error *err)
{
	if (*request->room_of)
		return brumate_wrap(err, -ENOSPC, "with job %s off the GPU", request->room_of);
	return request->wait_ms
		       ? brumate_wrap(err, -ENOSPC, "after %g s", request->wait_ms / 1000.0)
		       : -ENOSPC;
}

/* No event says when another program frees device memory, so it is polled, with growing pauses. */
static int wait_in_turn(struct op *op, const struct room_turn *turn, struct brumate_error *err)
{
	const struct request *request = op->request;
	const bool by_job = *request->room_of, others_leave = !by_job && request->wait_ms;
	const uint64_t until_ns = deadline_in_ms(request->wait_ms);
	struct leaver leaver = { request->room_of, PEER_NONE, 0, deadline_in_ms(STILL_LOOK_MS) };
	uint32_t pause_ms = LOOK_FIRST_MS;

	for (;;) {
		/* Nothing is to be waited for after a look that began when the other job had left. */
		const bool is_last = by_job ? has_left(request->room_of) && turn_is_first(turn)
					    : !request->wait_ms || !deadline_left_ms(until_ns);
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = others_leave ? placement_make_room(op, turn, &why) : look(op, turn, &why);

		if (r != -ENOSPC || is_last) {
			if (r < 0 && err)
				*err = why;
			return r == -ENOSPC ? fail_no_room(request, err) : r;
		}
		if (by_job && (r = check_going_on(op, err)) < 0)
			return r;
		/* What is undone has no caller that would give up. */
		if (by_job && request->wait_ms && (r = check_leaver(&leaver, err)) < 0)
			return r;
		const long left_ms = by_job ? LEAVING_LOOK_MS : deadline_left_ms(until_ns);
		const long ms = left_ms < (long)pause_ms ? left_ms : (long)pause_ms;

		nanosleep(&(struct timespec){ .tv_nsec = ms * (long)NS_PER_MS }, NULL);
		pause_ms = 2 * pause_ms < LOOK_MOST_MS ? 2 * pause_ms : LOOK_MOST_MS;
	}
}

/* A job that comes in the place of another keeps its turn until it is there: what has been found free is not for one that
 * asks before it is taken. */
int placement_wait_room(struct op *op, struct brumate_error *err)
{
	const struct job *job = job_of_target(op->target);
	struct room_turn passing = TURN_NONE;
	const bool in_place = job && *op->request->room_of;
	struct room_turn *turn = in_place ? &op->turn : &passing;
	int r = 0;

	if (in_place)
		r = turn_take_first(turn, job);
	else if (job && op->request->wait_ms)
		r = turn_take(turn, job, clock_now_ns());
	if (r < 0)
		log_warn("job %s waits for room without a turn: reason=\"%s\"", op->target->id,
			 strerror(-r));
	r = wait_in_turn(op, turn, err);
	turn_end(&passing);
	return r;
}
