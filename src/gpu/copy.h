// SPDX-License-Identifier: MIT
/*
 * What a backend does with memory: opens a GPU for copies; makes allocations that are passed as fds, and maps them at
 * addresses that the caller chooses inside a reserved range; pins host memory for the copies; and runs copies in
 * order in lanes, asynchronously. Any thread may call; a lane belongs to one thread at a time. There are no fault
 * points here: callers have their own, named after what they do.
 */
#pragma once

#include "base/chunk.h"
#include "base/cleanup.h"
#include "gpu/gpu.h"

enum { DEV_LANE_DEPTH = 64 }; /* the last copies of a lane that can be waited for */

struct dev_memory; /* a GPU: costs device memory while it is open */
struct dev_lane;
struct dev_digester; /* computes digests of one run of memory at a time */

struct dev_memory_ops {
	/* -ENODEV: no such GPU; -ENOSPC: not enough device memory to open it. */
	int (*open)(struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
		    struct brumate_error *err);
	void (*close)(struct dev_memory *m); /* nothing of it may be in use */
	/* The memory node near a GPU, which need not be open; -1: unknown. */
	int (*node)(const uint8_t uuid[static DEV_UUID_BYTES]);

	/* How much of its memory is free for allocations; 0 if the driver does not say. */
	uint64_t (*free_bytes)(struct dev_memory *m);

	/* Reserves addresses [*ret, *ret + bytes), multiples of 2 MiB. */
	int (*reserve)(struct dev_memory *m, uint64_t bytes, uint64_t *ret,
		       struct brumate_error *err);
	void (*unreserve)(struct dev_memory *m, uint64_t at,
			  uint64_t bytes); /* nothing may be mapped there */
	/* Maps the allocation that @fd (borrowed) refers to. The mapping keeps the allocation. */
	int (*import)(struct dev_memory *m, int fd, uint64_t bytes, uint64_t at,
		      struct brumate_error *err);
	/* Maps a fresh allocation and returns an fd (owned) of it. -ENOSPC: no room. */
	int (*create)(struct dev_memory *m, uint64_t bytes, uint64_t at, int *ret_fd,
		      struct brumate_error *err);
	/* Gives the GPU access to what is mapped, without gaps, in the range. */
	int (*allow)(struct dev_memory *m, uint64_t at, uint64_t bytes, struct brumate_error *err);
	/* Unmaps whole mappings without gaps. */
	int (*unmap)(struct dev_memory *m, uint64_t at, uint64_t bytes, struct brumate_error *err);

	/* Pins for all open GPUs, until unpinned or @m is closed. -ENOMEM: the driver refuses. */
	int (*pin)(struct dev_memory *m, void *at, uint64_t bytes, struct brumate_error *err);
	void (*unpin)(struct dev_memory *m, void *at);

	/* @spin: waiting for a copy polls for its end, which takes a core, instead of sleeping. */
	int (*lane_open)(struct dev_memory *m, bool spin, struct dev_lane **ret,
			 struct brumate_error *err);
	void (*lane_close)(struct dev_lane *lane); /* waits for its copies */
	/* Begin a copy; wait() with *ret_ticket returns when it and all earlier copies have ended. A ticket can be
	 * waited for until DEV_LANE_DEPTH more copies have begun. */
	int (*copy_out)(struct dev_lane *lane, void *to, uint64_t from, uint64_t bytes,
			uint64_t *ret_ticket, struct brumate_error *err);
	int (*copy_in)(struct dev_lane *lane, uint64_t to, const void *from, uint64_t bytes,
		       uint64_t *ret_ticket, struct brumate_error *err);
	/* Begins to fill with zeros, like a copy. */
	int (*zero)(struct dev_lane *lane, uint64_t at, uint64_t bytes, uint64_t *ret_ticket,
		    struct brumate_error *err);
	int (*wait)(struct dev_lane *lane, uint64_t ticket, struct brumate_error *err);

	/* For runs of up to @bytes_max. -ENOSPC: not enough device memory for it. */
	int (*digester_open)(struct dev_memory *m, uint64_t bytes_max, struct dev_digester **ret,
			     struct brumate_error *err);
	void (*digester_close)(struct dev_digester *d); /* waits for the digests under way */
	/* Begins to digest [at, at + bytes), in chunks of CHUNK_BYTES_MAX; leaves are whole. */
	int (*digest)(struct dev_digester *d, uint64_t at, uint64_t bytes,
		      struct brumate_error *err);
	/* Begins to copy [from, from + bytes) to @at, and to digest the copy. */
	int (*copy_and_digest)(struct dev_digester *d, uint64_t at, uint64_t from, uint64_t bytes,
			       struct brumate_error *err);
	/* Waits for what was begun last: chunk_digest() of each chunk, and whether it is all zero. */
	int (*digest_wait)(struct dev_digester *d, struct digest *ret, bool *ret_zero,
			   struct brumate_error *err);
};
