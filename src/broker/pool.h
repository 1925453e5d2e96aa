// SPDX-License-Identifier: MIT
/*
 * The pool: the broker's stock of host memory for copies of device memory, in segments that are unnamed files.
 *
 * Segments within the limit are pinned for the driver and stay so while the broker lives. Others are plain memory,
 * which copies reach through a ring of pinned memory. What does not fit into memory is in files on a disk, which
 * copies reach through the ring, too.
 *
 * A segment whose copy was handed out is *leased*: its holders have file descriptions of their own with a shared
 * flock. When the last of them is closed, also by the end of a process, the broker can lock the file exclusively, and takes
 * the segment back.
 *
 * Any thread may call. A segment that is taken belongs to one user, and only that one changes it.
 */
#pragma once

#include "gpu/copy.h"
#include "wire/broker-answers.h"

#include <stdbool.h>
#include <sys/stat.h>

struct pool;

enum segment_owner {
	SEGMENT_FREE,	/* the pool */
	SEGMENT_TAKEN,	/* part of a host copy that is being made, or a ring */
	SEGMENT_LEASED, /* the holders of a host copy */
	SEGMENT_FOREIGN /* not of this pool: it came from an earlier broker */
};

enum segment_backing {
	SEGMENT_SMALL_PAGES,
	SEGMENT_LARGE_PAGES, /* of ordinary memory: pinned as fast as they are copied */
	SEGMENT_HUGETLB,     /* reserved huge pages, which no other memory can use */
	SEGMENT_DISK,	     /* a file that is not mapped, and is of one host copy only */
};

enum segment_pages {
	SEGMENT_BLANK,	   /* they need not exist: the segment reads as zeros */
	SEGMENT_PROMISED,  /* they do not all exist yet, but count as used */
	SEGMENT_POPULATED, /* they exist, and may hold anything */
};

enum segment_pinning {
	SEGMENT_PLAIN,	  /* never pinned */
	SEGMENT_PINNABLE, /* counts against the pool's limit, and is pinned when that is worth it */
	SEGMENT_PINNED,	  /* counts, and is pinned */
};

struct segment {
	struct pool *pool;
	struct segment *next; /* in the pool's list, under its lock */
	int fd;
	dev_t dev; /* identify the file */
	ino_t ino;
	uint64_t bytes;
	char *at;	/* the mapping; NULL: on a disk */
	int node;	/* memory node; -1: any */
	unsigned users; /* copies in this process that it is part of; holders do not count */
	enum segment_owner owner; /* this and the following are written under the pool's lock */
	enum segment_backing backing;
	enum segment_pages pages;
	enum segment_pinning pinning;
};

struct pool_options {
	uint64_t limit_bytes;  /* limit of pinned memory; 0: half of the machine's memory */
	uint64_t memory_bytes; /* limit of all segments in memory; 0: what the machine has */
	const char *
		disk; /* directory for what does not fit (copied); NULL: "spill" in the state directory */
};

/** Returns 0 or -ENOMEM. */
int pool_new(struct pool **ret, const struct pool_options *o, struct brumate_error *err);
/** No segment may be taken. Leased ones stay with their holders. Accepts NULL. */
void pool_free(struct pool *p);
void pool_info(struct pool *p, struct broker_room *ret);

/** Host copies whose holders release them when they are asked to. */
struct pool_spare {
	uint64_t (*bytes)(void *arg);
	uint64_t (*recall)(
		void *arg); /* has all of them released, soon; returns how much that is */
	void *arg;
};
/** Before the first segment is taken: who knows of spare host copies. They count as room, and are recalled when that is
 * needed. */
void pool_set_spare(struct pool *p, const struct pool_spare *spare);

/** The size of segments for a copy of @total_bytes. Pure. */
uint64_t pool_segment_bytes(uint64_t total_bytes);

/**
 * Takes @n segments of @bytes: some perhaps pinned already, the rest new and not populated. @nodes: memory node
 * wanted for each; NULL: any. If memory is short, the last ones are on a disk. Errors to act on: -ENOSPC, whose text
 * says how much there is of both.
 */
int pool_take(struct pool *p, struct segment **ret, size_t n, uint64_t bytes, const int *nodes,
	      struct brumate_error *err);
/** Whether pool_take() would have all of them in memory. */
bool pool_has_room(struct pool *p, size_t n, uint64_t bytes);
/** The same, once spare host copies are released, if that is needed. May take half a second. */
bool pool_make_room(struct pool *p, size_t n, uint64_t bytes);
/** Takes @n segments of @bytes that have no pages and count as nothing: for what reads as zeros. */
int pool_take_blank(struct pool *p, struct segment **ret, size_t n, uint64_t bytes,
		    const int *nodes, struct brumate_error *err);
/** Takes a segment of @bytes for a ring, out of a part of the limit that no host copy may use. NULL: there is no
 * room. With @must it is plain memory in that case, and NULL means that memory is short. */
struct segment *pool_take_ring(struct pool *p, uint64_t bytes, bool must);
/** The segment behind a holder's descriptor (borrowed): one of the pool, or a foreign one, which is mapped for this
 * use. @spilled: it may be on a disk. -EBADF: it is not a segment. */
int pool_adopt(struct pool *p, struct segment **ret, int fd, uint64_t bytes, bool spilled,
	       struct brumate_error *err);
/** Ends the use of a segment: leased ones stay leased, others go back to the pool. Accepts NULL. */
void pool_put(struct segment *s);

/** Makes a free segment of @bytes on @node (-1: any) for future copies: populated, not pinned yet. May take long.
 * Returns 0; -EDQUOT: the limit has no room for it; -ENOMEM: the machine has no memory, or no descriptors. */
int pool_prepare(struct pool *p, uint64_t bytes, int node);
/** Pins a segment that is free and populated, and is not pinned yet. Returns 1; 0: there is none; -ENOMEM: the driver
 * refuses. */
int pool_pin_ready(struct pool *p, const struct dev_memory_ops *ops, struct dev_memory *m);
/** Bytes of segments that are free and populated. */
uint64_t pool_free_bytes(struct pool *p);
/** Frees unused segments until at most @bytes are left. */
void pool_trim(struct pool *p, uint64_t bytes);

/** A kind of segment: size and node (-1: any); with the bytes of it that are meant. */
struct pool_kind {
	uint64_t segment_bytes, bytes;
	int node;
};

/** Bytes of segments of that size and node that are free and populated. */
uint64_t pool_ready_bytes(struct pool *p, const struct pool_kind *kind);
/** Frees the unused segments of other kinds, and those of these kinds beyond the bytes that each states. */
void pool_keep(struct pool *p, const struct pool_kind *kinds, size_t n);

/** Sets the open GPU through which segments are pinned and unpinned. */
void pool_pinned_by(struct pool *p, const struct dev_memory_ops *ops, struct dev_memory *m);
/** Unpins everything; no copy may run. The pages stay. */
void pool_unpin(struct pool *p);

/** Whether @s belongs to its user alone and has no pages yet. */
bool segment_is_blank(const struct segment *s);
/** Whether @s belongs to its user alone and may hold bytes of another copy. */
bool segment_is_used(const struct segment *s);
/** Gives a taken segment that may hold something back to the pool, in exchange for a blank one that will not be
 * written before it is leased. Returns 0 or -errno. */
int segment_exchange(struct segment **s);
/** Populates a taken segment. May take long, so the caller must hold no lock. Returns 1 if its pages may hold
 * something, 0 if they are zero. */
int segment_populate(struct segment *s, struct brumate_error *err);
/** Whether @s is pinned, or should be for a copy. Reading a segment that others hold, of small unpinned pages, is
 * faster through the ring than after pinning it again. */
bool segment_is_worth_pinning(const struct segment *s);
/** Pins @s if that is worth it; if the driver refuses, it stays unpinned. */
void segment_pin(struct segment *s, const struct dev_memory_ops *ops, struct dev_memory *m);
/** Zeros bytes of a mapped segment; missing pages are zero already. */
void segment_zero(const struct segment *s, uint64_t inside, uint64_t bytes);
/** Leases @s and returns a descriptor (owned) for its holder. @written: the holder will write it. */
int segment_lease(struct segment *s, bool written, struct brumate_error *err);
