// SPDX-License-Identifier: MIT
/*
 * Device memory that is held by file descriptors, moved to host memory and back by the broker, while its owner is away.
 * A session is a connection of its own to the broker; its calls block, so an engine runs them in a thread, alongside
 * the driver's work. Not for two threads at once.
 *
 * A host copy is one run of bytes [0, total_bytes) in memfds of segment_bytes each (the last may be longer than
 * needed): pieces stand one after the other, each at a multiple of 2 MiB. The processes that hold its memfds keep it;
 * when the last one is gone, the broker takes the segments back into its pool. Where memory is short, some segments are
 * on a disk, encrypted (wire/host-copy.h): then the memfd of their key is held as one segment more, and nobody maps
 * what is not memory. The broker may die at any time: what is held stays, and the call can be made again with another
 * session.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "gpu/gpu.h"
#include "client/broker.h"
#include "wire/host-copy.h"

/** A piece of device memory. */
struct device_piece {
	uint64_t len_bytes;
	char gpu[DEV_UUID_TEXT_BYTES];
};

/** A host copy. Owns its fds: of the segments, and perhaps of their key behind them. */
struct host_copy {
	uint64_t total_bytes, segment_bytes;
	int *segments;
	size_t n_segments;
	struct digest_table *digests; /* of its chunks; NULL: there are none */
};
#define HOST_COPY_EMPTY ((struct host_copy){ 0 })
void host_copy_fini(struct host_copy *c);

/** How many segments it has, without the key. Pure. */
size_t host_copy_n_segments(const struct host_copy *c);
/** Whether some may be on a disk: there is a key. Pure. */
bool host_copy_is_spilled(const struct host_copy *c);
/** Whether segment @i is. */
bool host_copy_is_on_disk(const struct host_copy *c, size_t i);
/** Bytes of memory that its segments take. */
uint64_t host_copy_memory_bytes(const struct host_copy *c);
/** Bytes of it that are on a disk. */
uint64_t host_copy_disk_bytes(const struct host_copy *c);
DEFINE_AUTO_FINI(struct host_copy, host_copy_fini)

/** Where piece @i of @pieces starts in their host copy; with @i == n, its total. Pure. */
uint64_t host_copy_offset(const struct device_piece *pieces, size_t i);

struct transfer_client;
/** Opens a session. Errors to act on: those of broker_client_open(). @b is borrowed for this call. */
int transfer_client_open(struct transfer_client **ret, struct broker_client *b,
			 struct brumate_error *err);
/** Ends what is under way, and waits a little until the broker has released it. Accepts NULL. */
void transfer_client_close(struct transfer_client *c);
DEFINE_AUTO(struct transfer_client *, transfer_client_close)

/** Called now and then with the bytes moved so far; <0 cancels with that code. */
typedef int (*transfer_progress_fn)(void *arg, uint64_t done_bytes);

/** During transfer_client_out(): the first @n_whole segments of @copy, which has no others yet, hold what they will
 * hold. @digests of their chunks; NULL: they are not known. Called again as there are more, but not of a copy that is
 * on a disk in part. It stays true even if the transfer fails later. */
typedef void (*transfer_whole_fn)(void *arg, const struct host_copy *copy, size_t n_whole,
				  const struct digest *digests);

/** During transfer_client_in(): the device memory of all pieces is there (@fds, in their order, borrowed),
 * and the first @n_filled are filled. Only the end of the transfer tells whether with the right bytes.
 * Called again as more are. */
typedef void (*transfer_filled_fn)(void *arg, const int *fds, size_t n_filled);

/** During transfer_client_out(): how many of the first of @fds are there. Where no more than @n are it waits for more, for a
 * moment. */
typedef size_t (*transfer_given_fn)(void *arg, size_t n);

/** What is to be transferred, and how. Functions are called in the thread of the transfer, and may be NULL. */
struct transfer_request {
	const struct device_piece *pieces;
	size_t n;
	/* The GPU computes digests during the copies: chunks that are all zero are not copied out, host copies get
	 * their digests, and what was copied in is compared with them (-EBADMSG). */
	bool digests;
	/* Out, with digests: memory may be written meanwhile. The digests are of what was copied. -ENOSPC: a
	 * GPU has no room for the buffers that the copies go through. */
	bool live;
	transfer_given_fn given; /* NULL: all fds are there */
	transfer_progress_fn progress;
	transfer_whole_fn whole;
	transfer_filled_fn filled;
	void *arg; /* of these functions */
};

/** During transfer_client_stream(). Functions are called in its thread. */
struct transfer_stream {
	struct digest_table
		*digests; /* borrowed; where it is whole, zeros are not sent; NULL: none */
	/* Slots 0 to @n of TRANSFER_SLOT_BYTES are there, in the memory that @fd is (borrowed), and all are free. */
	int (*begin)(void *arg, int fd, size_t n, struct brumate_error *err);
	/* These (a mask) are free again. */
	void (*freed)(void *arg, uint32_t slots);
	void *arg;
};

/** What was not copied out, being zero or unchanged. */
struct transfer_spared {
	uint64_t zero_bytes, same_bytes;
};

/** Copies the pieces, whose memory @fds (borrowed) hold, into a fresh host copy. @ret_spared may be NULL.
 * Errors to act on: -EPIPE (the broker died: again with a new session), -ENOSPC, -ENOMEM, -EIO (the driver's
 * text). The memory stays. */
int transfer_client_out(struct transfer_client *c, const struct transfer_request *request,
			const int *fds, struct host_copy *ret, struct transfer_spared *ret_spared,
			struct brumate_error *err);

/** Like transfer_client_out(), but copies nothing: only finds out how much is zero, by the digests. Memory may be written
 * meanwhile. @digests (borrowed, may be NULL) gets those of all chunks. -EOPNOTSUPP: there are no digests. */
int transfer_client_count(struct transfer_client *c, const struct transfer_request *request,
			  const int *fds, struct digest_table *digests, uint64_t *ret_zero_bytes,
			  struct brumate_error *err);

/**
 * Like transfer_client_out(), but brings the host copy @base of the same layout up to date in place. It copies only
 * what has changed if the digests are whole. They are invalid from before the first byte is written until the end, so
 * all who hold a base that a failure left half done can see that.
 */
int transfer_client_update(struct transfer_client *c, const struct transfer_request *request,
			   const int *fds, struct host_copy *base,
			   struct transfer_spared *ret_spared, struct brumate_error *err);

/** Makes device memory for the pieces, fills it from @from, and gives its fds (owned by the caller),
 * which alone keep it. *ret_compared (may be NULL): all of it was compared with digests, not only what a GPU
 * had room to. Errors to act on: as transfer_client_out(); -ENOSPC: no room on a GPU, the text says which. */
int transfer_client_in(struct transfer_client *c, const struct transfer_request *request,
		       const struct host_copy *from, int *ret_fds, bool *ret_compared,
		       struct brumate_error *err);

/** Like transfer_client_in(), but without a host copy: its bytes come by transfer_client_fill(). */
int transfer_client_stream(struct transfer_client *c, const struct transfer_request *request,
			   const struct transfer_stream *stream, int *ret_fds, bool *ret_compared,
			   struct brumate_error *err);

/** Sends that @slot, which was free, holds @bytes from @offset on of what would be the host copy: multiples of
 * 2 MiB, of one GPU, and for each GPU in their order. From any thread, from begin() on. -EPIPE: the stream has
 * ended. */
int transfer_client_fill(struct transfer_client *c, unsigned slot, uint64_t offset, uint64_t bytes);

/** Ends the request under way, from any thread: it fails with -EPIPE if it has not ended. */
void transfer_client_abort(struct transfer_client *c);
