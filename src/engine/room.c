// SPDX-License-Identifier: MIT
/* Waiting for the device memory that a job needs to come back. See gpu-set.h. */
#include "engine/gpu-set.h"

#include <errno.h>
#include <time.h>

#include "base/clock.h"

enum { LOOK_FIRST_MS = 20, LOOK_MOST_MS = 500 };

/* No event tells when another program frees device memory, so it is polled, with growing pauses. */
int placement_wait_room(const struct target *target, struct gpu_set *gpus,
			const struct vault *vault, struct progress *progress, uint32_t wait_ms,
			struct brumate_error *err)
{
	const uint64_t until_ns = deadline_in_ms(wait_ms);
	uint32_t pause_ms = LOOK_FIRST_MS;

	for (;;) {
		struct brumate_error why = BRUMATE_ERROR_NONE;
		int r = placement_check_room(target, gpus, vault, &why);
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
		const long ms = left_ms < (int)pause_ms ? left_ms : (long)pause_ms;
		nanosleep(&(struct timespec){ .tv_nsec = ms * (long)NS_PER_MS }, NULL);
		pause_ms = 2 * pause_ms < LOOK_MOST_MS ? 2 * pause_ms : LOOK_MOST_MS;
	}
}
