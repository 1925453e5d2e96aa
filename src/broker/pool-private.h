// SPDX-License-Identifier: MIT
/* What the two files of the pool share. */
#pragma once

#include "broker/pool.h"

/** Makes the file of @s, whose bytes and node are set, and maps it. 0 or -errno. */
int segment_make(struct segment *s);
/** The same of no pages that are set aside: it may stay without any. */
int segment_make_blank(struct segment *s);
/** A file of ordinary memory in place of the one of @s, which nobody has seen yet. 0 or -errno. */
int segment_make_again(struct segment *s);
/** Maps another's file (borrowed) as @s. 0 or -errno. */
int segment_map_foreign(struct segment *s, int fd);
/** Another's file (borrowed) on a disk, as @s. 0 or -errno. */
int segment_open_foreign(struct segment *s, int fd);
/** Unmapped, closed, freed; it is pinned no more. */
void segment_free(struct segment *s);

/** segment_make_again(), where memory has room for it: -ENOMEM. */
int pool_make_ordinary(struct segment *s);
/** The pages of @s are there now: they count as used by themselves. */
void pool_note_touched(struct segment *s);
/** @s has a holder from now on, who writes it or not. */
void pool_note_lease(struct segment *s, bool written);
