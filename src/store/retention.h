// SPDX-License-Identifier: MIT
/* Which checkpoints a rule of retention lets go. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** At least one of the two must be given; what either keeps is kept. */
struct retention_rule {
	unsigned keep_last;	 /* newest of each job; 0: not given */
	uint64_t keep_within_ms; /* younger than this; 0: not given */
};

struct retention_item {
	const char *id, *job, *created; /* borrowed; @created as clock_stamp() writes it */
	uint64_t sequence; /* by which those of a job are ordered, see manifest_sequence() */
	bool doomed;
};

/**
 * Sets doomed for each of @items, and sorts them by job, newest first: the one of the highest sequence, whatever the
 * clock said. One whose time cannot be read or
 * lies in the future is as new as can be.
 */
void retention_choose(struct retention_item *items, size_t n, const struct retention_rule *rule,
		      uint64_t now_ms);
