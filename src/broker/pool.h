// SPDX-License-Identifier: MIT
/*
 * The pool: the broker's stock of host memory for copies of device memory, in segments that are files
 * without a name. What fits under the limit is pinned for the driver and stays so while the broker
 * lives; what does not fit is plain memory that copies reach through a ring of pinned memory. What does
 * not even fit into memory is in files on a disk, which copies reach through the ring too.
 *
 * A segment whose copy was handed out is *leased*: its holders have file descriptions of their own
 * with a shared flock. When the last of them is closed, by whatever end, the broker can lock the file
 * alone, and takes the segment back.
 *
 * Any thread may call. A segment that is taken belongs to one user, who alone changes it.
 */
#pragma once

#include "gpu/copy.h"

#include <stdbool.h>
#include <sys/stat.h>

struct pool;

enum segment_owner {
	SEGMENT_FREE,	/* the pool */
	SEGMENT_TAKEN,	/* a host copy that is being made, or a ring */
	SEGMENT_LEASED, /* the holders of a host copy */
	SEGMENT_FOREIGN /* somebody else: it came from an earlier broker, and is in no pool */
};

enum segment_backing {
	SEGMENT_SMALL_PAGES,
	SEGMENT_LARGE_PAGES, /* of ordinary memory: they are pinned as fast as they are copied */
	SEGMENT_HUGETLB,     /* large pages that the machine set aside: no part of other memory */
	SEGMENT_DISK,	     /* a file that nobody maps, and that is of one host copy only */
};

enum segment_pages {
	SEGMENT_BLANK,	   /* they need not be there: it reads as zeros */
	SEGMENT_PROMISED,  /* they are not all there yet, but count as used */
	SEGMENT_POPULATED, /* they are there, and may hold anything */
};

enum segment_pinning {
	SEGMENT_PLAIN, /* never pinned */
	SEGMENT_PINNABLE, /* counts against the pool's limit, and is to be pinned when that is worth it */
	SEGMENT_PINNED, /* counts too, and is */
};

struct segment {
	struct pool *pool;
	struct segment *next; /* in the pool's list, under its lock */
	int fd;
	dev_t dev; /* which file it is */
	ino_t ino;
	uint64_t bytes;
	char *at;		  /* where it is mapped; NULL: on a disk */
	int node;		  /* of memory; -1: any */
	unsigned users;		  /* copies here that it is part of, beside its holders */
	enum segment_owner owner; /* this and the rest are written under the pool's lock */
	enum segment_backing backing;
	enum segment_pages pages;
	enum segment_pinning pinning;
};

struct pool_info {
	uint64_t limit_bytes, pinned_bytes, leased_bytes, free_bytes;
	uint64_t free_pinned_bytes;	   /* of free_bytes, pinned by now */
	uint64_t memory_bytes, disk_bytes; /* room for copies */
	const char *disk; /* directory of segments on a disk, borrowed of the pool */
};

struct pool_options {
	uint64_t limit_bytes;  /* may be pinned; 0: half of the machine's memory */
	uint64_t memory_bytes; /* of all segments in memory, at most; 0: what the machine has */
	const char *
		disk; /* directory for what does not fit (copied); NULL: "spill" in the state directory */
};

/** Returns 0 or -ENOMEM. */
int pool_new(struct pool **ret, const struct pool_options *o, struct brumate_error *err);
/** No segment is taken any more. Those that are leased stay with their holders. Accepts NULL. */
void pool_free(struct pool *p);
void pool_info(struct pool *p, struct pool_info *ret);

/** The size of segments for a copy of @total_bytes. Pure. */
uint64_t pool_segment_bytes(uint64_t total_bytes);

/**
 * Takes @n segments of @bytes: some perhaps pinned already, the rest new and yet to be populated.
 * @nodes: memory node wanted for each; NULL: any. Where memory is short, the last ones are on a disk.
 * Errors to act on: -ENOSPC, whose text says how much there is of both.
 */
int pool_take(struct pool *p, struct segment **ret, size_t n, uint64_t bytes, const int *nodes,
	      struct brumate_error *err);
/** Takes a segment of @bytes for a ring, out of a part of the limit that no host copy may use. NULL: there
 * is no room; with @must it is plain memory then, and NULL means that memory is short. */
struct segment *pool_take_ring(struct pool *p, uint64_t bytes, bool must);
/** The segment behind a holder's descriptor (borrowed): one of the pool, or a foreign one that is mapped for
 * this use. @spilled: it may be on a disk. -EBADF: it is not a segment. */
int pool_adopt(struct pool *p, struct segment **ret, int fd, uint64_t bytes, bool spilled,
	       struct brumate_error *err);
/** Ends the use of a segment: leased ones stay so, others go back. Accepts NULL. */
void pool_put(struct segment *s);

/** Makes a free segment of @bytes on @node (-1: any) ready for a copy to come: populated, not pinned yet. It may wait
 * long. Returns 0; -EDQUOT: the limit has no room for it; -ENOMEM: the machine has none, or no descriptors. */
int pool_prepare(struct pool *p, uint64_t bytes, int node);
/** Pins a segment that is free and ready, and is not pinned yet. Returns 1; 0: there is none; -ENOMEM: the driver will
 * not. */
int pool_pin_ready(struct pool *p, const struct dev_memory_ops *ops, struct dev_memory *m);
/** Bytes of segments that are free and ready. */
uint64_t pool_free_bytes(struct pool *p);
/** Gives free segments back to the machine until no more than @bytes are left. */
void pool_trim(struct pool *p, uint64_t bytes);

/** Segments of one size, on one node (-1: on any), and how many bytes of them. */
struct pool_kind {
	uint64_t segment_bytes, bytes;
	int node;
};

/** Bytes of segments of that size and node that are free and ready. */
uint64_t pool_ready_bytes(struct pool *p, const struct pool_kind *kind);
/** Gives back the free segments that are of none of these kinds, and those beyond as many as the bytes of their kind fill. */
void pool_keep(struct pool *p, const struct pool_kind *kinds, size_t n);

/** Tells by which open GPU segments are pinned and unpinned. */
void pool_pinned_by(struct pool *p, const struct dev_memory_ops *ops, struct dev_memory *m);
/** Unpins everything, while no copy runs; the pages stay. */
void pool_unpin(struct pool *p);

/** Whether @s is its user's alone and has no pages yet. */
bool segment_is_blank(const struct segment *s);
/** Whether @s is its user's alone and may hold bytes of another copy. */
bool segment_is_used(const struct segment *s);
/** Gives a taken segment that may hold something back to the pool, for one that is blank and is not meant
 * to be written before it is leased. Returns 0 or -errno. */
int segment_exchange(struct segment **s);
/** Makes the pages of a taken segment be there. It may wait long, so the caller holds no lock. Returns 1 if
 * they may hold something, 0 if they are zero. */
int segment_populate(struct segment *s, struct brumate_error *err);
/** Whether @s is pinned, or is to be for a copy. Reading one that others hold, in small pages that were
 * unpinned, is faster through the ring than after pinning them again. */
bool segment_is_worth_pinning(const struct segment *s);
/** Pins @s where that is worth it; what the driver refuses stays unpinned. */
void segment_pin(struct segment *s, const struct dev_memory_ops *ops, struct dev_memory *m);
/** Makes bytes of a mapped segment zero; what has no pages is zero already. */
void segment_zero(const struct segment *s, uint64_t inside, uint64_t bytes);
/** A descriptor (owned) for a holder of @s, which is leased from now on. @written: the holder writes it. */
int segment_lease(struct segment *s, bool written, struct brumate_error *err);
