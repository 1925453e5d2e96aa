// SPDX-License-Identifier: MIT
/* Waiting for the device memory that a job needs to come back. See gpu-set.h. */
#include "engine/op.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "engine/neighbours.h"
#include "engine/turn.h"

enum { LOOK_FIRST_MS = 20, LOOK_MOST_MS = 500 };

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
		r = neighbours_make_room(job, &conf, &why);
	if (r < 0 && r != -EAGAIN)
		log_warn("no neighbour leaves: job=%s reason=\"%s\"", target->id, why.text);
	return r;
}

/* Between two looks: one neighbour after the other leaves, as far as they may. Returns 1 if there may be room now. */
static int go_on(struct op *op, const struct room_turn *turn, struct brumate_error *err)
{
	int r = progress_check(&op->progress, err);

	if (r < 0)
		return r;
	if (op->target->state != JOB_RESTORING && target_has_ended(op->target))
		return brumate_fail(err, ESRCH, "job %s has ended", op->target->id);
	return have_one_leave(turn, op->target) == 1;
}

int placement_make_room(struct op *op, const struct room_turn *turn, struct brumate_error *err)
{
	for (;;) {
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = look(op, turn, &why);
		int left = r == -ENOSPC ? go_on(op, turn, err) : 0;

		if (left == 1)
			continue;
		if (left == 0 && r < 0 && err)
			*err = why;
		return left < 0 ? left : r;
	}
}

/* No event tells when another program frees device memory, so it is polled, with growing pauses. */
static int wait_in_turn(struct op *op, const struct room_turn *turn, uint32_t wait_ms,
			struct brumate_error *err)
{
	const uint64_t until_ns = deadline_in_ms(wait_ms);
	uint32_t pause_ms = LOOK_FIRST_MS;
	int r, left_ms;

	while ((r = placement_make_room(op, turn, err)) == -ENOSPC &&
	       (left_ms = deadline_left_ms(until_ns))) {
		const long ms = left_ms < (int)pause_ms ? left_ms : (long)pause_ms;

		nanosleep(&(struct timespec){ .tv_nsec = ms * (long)NS_PER_MS }, NULL);
		pause_ms = 2 * pause_ms < LOOK_MOST_MS ? 2 * pause_ms : LOOK_MOST_MS;
	}
	return r == -ENOSPC ? brumate_wrap(err, r, "after %g s", wait_ms / 1000.0) : r;
}

int placement_wait_room(struct op *op, uint32_t wait_ms, struct brumate_error *err)
{
	const struct job *job = job_of_target(op->target);
	struct room_turn turn = TURN_NONE;

	if (!wait_ms)
		return look(op, &turn, err);
	if (job && turn_take(&turn, job, clock_now_ns()) < 0)
		log_warn("job %s waits for room without a turn", op->target->id);
	int r = wait_in_turn(op, &turn, wait_ms, err);
	turn_end(&turn);
	return r;
}
