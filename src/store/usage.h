// SPDX-License-Identifier: MIT
/* What checkpoints take on disk, given that they share packs. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "store/store.h"

/** Packs that were counted already. */
struct usage_seen {
	ino_t *slots; /* open hash; 0 is free */
	size_t n_slots, n;
};
#define USAGE_SEEN_EMPTY ((struct usage_seen){ 0 })
void usage_seen_fini(struct usage_seen *s);
DEFINE_AUTO_FINI(struct usage_seen, usage_seen_fini)

struct usage {
	uint64_t disk_bytes;   /* blocks of its files, less what was counted with another before */
	uint64_t shared_bytes; /* blocks of its packs that other checkpoints have too */
};

/** Counts @i, adding to @seen. Of checkpoints that are counted one after the other, the sum of disk_bytes
 * is what they take together. Files that are missing count nothing. 0 or -ENOMEM. */
int usage_of(struct usage *ret, const struct store_image *i, struct usage_seen *seen);
