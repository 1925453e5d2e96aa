// SPDX-License-Identifier: MIT
/* Waiting for the device memory that a job needs to come back. See gpu-set.h. */
#include "engine/gpu-set.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "engine/neighbours.h"
#include "engine/turn.h"

enum { LOOK_FIRST_MS = 20, LOOK_MOST_MS = 500 };

/* While others wait before it, a job has no room, however much is free. */
static int look(const struct room_turn *turn, const struct target *target, struct gpu_set *gpus,
		const struct vault *vault, struct brumate_error *err)
{
	if (turn_is_first(turn))
		return placement_check_room(target, gpus, vault, err);
	brumate_fail(err, ENOSPC, "other jobs wait for the same GPU before job %s", target->id);
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

/* No event tells when another program frees device memory, so it is polled, with growing pauses. */
static int wait_in_turn(struct room_turn *turn, const struct target *target, struct gpu_set *gpus,
			const struct vault *vault, struct progress *progress, uint32_t wait_ms,
			struct brumate_error *err)
{
	const uint64_t until_ns = deadline_in_ms(wait_ms);
	uint32_t pause_ms = LOOK_FIRST_MS;

	for (;;) {
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = look(turn, target, gpus, vault, &why);
		const int left_ms = wait_ms ? deadline_left_ms(until_ns) : 0;

		if (r != -ENOSPC || !left_ms) {
			if (r < 0 && err)
				*err = why;
			return r == -ENOSPC && wait_ms
				       ? brumate_wrap(err, r, "after %g s", wait_ms / 1000.0)
				       : r;
		}
		if ((r = progress_check(progress, err)) < 0)
			return r;
		if (target->state == JOB_RESUMING && target_has_ended(target))
			return brumate_fail(err, ESRCH, "job %s has ended", target->id);
		if (have_one_leave(turn, target) == 1)
			continue;
		const long ms = left_ms < (int)pause_ms ? left_ms : (long)pause_ms;
		nanosleep(&(struct timespec){ .tv_nsec = ms * (long)NS_PER_MS }, NULL);
		pause_ms = 2 * pause_ms < LOOK_MOST_MS ? 2 * pause_ms : LOOK_MOST_MS;
	}
}

int placement_wait_room(const struct target *target, struct gpu_set *gpus,
			const struct vault *vault, struct progress *progress, uint32_t wait_ms,
			struct brumate_error *err)
{
	const struct job *job = job_of_target(target);
	struct room_turn turn = TURN_NONE;

	if (job && wait_ms && turn_take(&turn, job, clock_now_ns()) < 0)
		log_warn("job %s waits for room without a turn", target->id);
	int r = wait_in_turn(&turn, target, gpus, vault, progress, wait_ms, err);
	turn_end(&turn);
	return r;
}
