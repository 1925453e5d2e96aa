// SPDX-License-Identifier: MIT
/*
 * Compares processes that CRIU has restored, and which stand still before their first instruction, with the images that it
 * made them of: what the kernel says of them now with what was written down of them then.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/** How much was compared. */
struct criu_compared {
	uint64_t processes, threads, mappings, descriptors, timers;
	uint64_t page_bytes; /* of pages in the images, each byte with what is in memory */
};

/** What is compared. All borrowed. */
struct criu_comparing {
	int dir_fd; /* of the images */
	pid_t init; /* of the pid namespace that they were restored in, in our numbering: its /proc is looked at */
	/* Files that others took the place of, as criu_inherit has them: of these the descriptor alone is compared. */
	const char *const *replaced;
	size_t n_replaced;
	bool groups_are_masked; /* criu_mask_groups(): the processes have ours, and those were looked at before */
};

/**
 * criu_compare() - compare with the images
 *
 * Errors to act on: -EBADMSG names the process and what is different, or an image that is damaged.
 */
int criu_compare(struct criu_compared *ret, const struct criu_comparing *what,
		 struct brumate_error *err);
