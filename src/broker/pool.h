// SPDX-License-Identifier: MIT
/*
 * The pool: host memory for copies of device memory, in segments that are files without a name. What
 * fits under the limit is pinned for the driver and stays so while the broker lives; what does not is
 * plain memory that copies reach through a ring of pinned segments. What does not even fit into memory
 * is in files on a disk, which copies reach through the ring too.
 *
 * A segment whose copy was handed out is *leased*: its holders have file descriptions of their own
 * with a shared flock. When the last of them is closed, by whatever end, the broker can lock the file
 * alone, and takes the segment back.
 */
#pragma once

#include "gpu/copy.h"

#include <stdbool.h>
#include <sys/stat.h>

struct segment {
	struct segment *next; /* in the pool's list, under its lock */
	int fd;
	dev_t dev; /* which file it is */
	ino_t ino;
	uint64_t bytes;
	char *at;	/* where it is mapped */
	int node;	/* of memory; -1: any */
	bool kept;	/* counted against the limit: pinned, or to be */
	bool pinned;	/* by its user alone while it is taken */
	bool touched;	/* its pages are there */
	bool huge;	/* they are large: pinned as fast as copied */
	bool hugetlb;	/* of the pages set aside for this: no part of other memory */
	bool dirty;	/* they held something */
	bool promised;	/* its pages are not all there yet, but spoken for */
	bool spilled;	/* on a disk: not mapped, of one copy only */
	unsigned users; /* copies here that it is part of, beside its holders */
	enum { SEGMENT_FREE, SEGMENT_TAKEN, SEGMENT_LEASED, SEGMENT_FOREIGN } state;
};

struct pool_info {
	uint64_t limit_bytes, kept_bytes, leased_bytes, free_bytes;
	uint64_t memory_bytes, disk_bytes; /* room for copies */
};

/** @limit_bytes 0: a quarter of the machine's memory. */
void pool_init(uint64_t limit_bytes);
/** All segments in memory, pinned or not, have no more than this; 0: what the machine has. */
void pool_bound(uint64_t memory_bytes);
void pool_info(struct pool_info *ret);

/** The size of segments for a copy of @total_bytes. Pure. */
uint64_t pool_segment_bytes(uint64_t total_bytes);

/**
 * Takes @n segments of @bytes, some perhaps kept and warm, the rest new and yet to be prepared.
 * @nodes: of memory wanted for each; NULL: any. Where memory is short, the last are on a disk. -ENOSPC
 * says how much there is of both.
 */
int pool_take(struct segment **ret, size_t n, uint64_t bytes, const int *nodes,
	      struct brumate_error *err);
/** Takes a kept segment of @bytes for a ring, out of a part of the limit that no lease may use. NULL: there
 * is no room; with @must it is plain memory then. */
struct segment *pool_take_ring(uint64_t bytes, bool must);

/** Whether @s is a user's alone and has no pages yet: it reads as zeros. */
bool segment_is_blank(const struct segment *s);
/** Gives a taken segment that holds something back to the pool, for one that is blank and is not meant to
 * be written before it is leased. 0 or -errno. */
int pool_take_blank(struct segment **s);
/** Makes the pages be there. Any thread; not under a lock. */
int segment_touch(struct segment *s, struct brumate_error *err);
/** Whether it is pinned, or is to be for a copy: reading one that others hold, in small pages that were
 * unpinned, through the ring is faster than pinning them again. */
bool segment_is_worth_pinning(const struct segment *s);
/** Pins it where that is worth it; what the driver refuses stays unpinned. */
void segment_pin(struct segment *s, const struct dev_memory_ops *ops, struct dev_memory *m);

/** Makes bytes of one that is mapped zero; what has no pages is. */
void segment_zero(const struct segment *s, uint64_t inside, uint64_t bytes);
/** A descriptor (owned) for a holder of the leased segment. @written: by the holder, from now on. */
int segment_lease(struct segment *s, bool written, struct brumate_error *err);
/** The segment behind a descriptor (borrowed) of a holder: one of the pool, or a foreign one mapped for
 * this use. @spilled: it may be on a disk. -EBADF: it is none. */
int pool_adopt(struct segment **ret, int fd, uint64_t bytes, bool spilled,
	       struct brumate_error *err);
/** Ends the use of a segment: leased ones stay so, others go back. Accepts NULL. */
void pool_put(struct segment *s);

/** The open GPU by which segments are pinned and unpinned; NULL: none is open, nothing is pinned. */
void pool_pinned_by(const struct dev_memory_ops *ops, struct dev_memory *m);
/** Unpins everything, while no copy runs; the pages stay. */
void pool_unpin(void);
