// SPDX-License-Identifier: MIT
/* The ring of a lane: pinned memory through which copies reach segments that are not pinned. */
#include "broker/data-lane.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>

/* Of as many slots as there is room for, up to @n; 0: not even of the fewest. */
static size_t take_ring(struct lane *l, size_t n, bool must)
{
	for (; n >= SLOTS_MIN; n /= 2) {
		l->ring = pool_take_ring(n * SLOT_BYTES, must);
		if (l->ring)
			return n;
	}
	return 0;
}

/* What cannot have a ring copies to pageable memory, at a third of the speed; to a disk all goes by a
 * ring, pinned or not. */
int lane_take_ring(struct lane *l, struct brumate_error *err)
{
	struct mover *m = l->mover;
	const bool must = m->host->spilled;
	size_t n = SLOTS_ALL / m->n_lanes;
	bool usable = false;

	n = take_ring(l, n > WINDOW ? WINDOW : n < SLOTS_MIN ? SLOTS_MIN : n, must);
	if (n && segment_touch(l->ring, NULL) == 0) {
		segment_pin(l->ring, m->ops, l->memory);
		l->ring->dirty = true;
		usable = l->ring->pinned || must;
	}
	if (usable) {
		l->n_slots = n;
		return 0;
	}
	pool_put(take_ptr(&l->ring));
	log_debug("no ring: no memory that can be pinned");
	return must ? brumate_fail(err, ENOMEM, "no memory for a ring: %m") : 0;
}
