// SPDX-License-Identifier: MIT
/*
 * Device memory that is held by file descriptors, moved to host memory and back by the broker, while
 * its owner is away. A session is a connection of its own to the broker; its calls block, so an
 * engine runs them in a thread beside the driver's work. Not for two threads at once.
 *
 * A host copy is one run of bytes [0, total_bytes) in memfds of segment_bytes each (the last may be
 * longer than needed): pieces stand one after the other, each at a multiple of 2 MiB. It is whoever
 * holds its memfds that keeps it; when the last holder is gone, the broker takes the segments back
 * into its pool. Where memory is short, some segments are on a disk, encrypted (wire/spill.h): then the
 * memfd of their key is held as one segment more, and nobody maps what is not memory. The broker may die at any time: what is held stays, and the call can be made again
 * with another session.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "device/device.h"
#include "engine/broker-client.h"
#include "wire/digest-table.h"

#define DATA_ALIGN_BYTES (2ull << 20)

/** A piece of device memory. */
struct data_piece {
	uint64_t len_bytes;
	char gpu[DEV_UUID_TEXT_BYTES];
};

/** A host copy. Owns its fds: of the segments, and perhaps of their key behind them. */
struct data_copy {
	uint64_t total_bytes, segment_bytes;
	int *segments;
	size_t n_segments;
	struct digest_table *digests; /* of its chunks; NULL: there are none */
};
#define DATA_COPY_EMPTY ((struct data_copy){ 0 })
void data_copy_fini(struct data_copy *c);

/** How many segments it has, without the key. Pure. */
size_t data_copy_parts(const struct data_copy *c);
/** Whether some may be on a disk: there is a key. Pure. */
bool data_copy_is_spilled(const struct data_copy *c);
/** Whether segment @i is. */
bool data_copy_on_disk(const struct data_copy *c, size_t i);
/** Bytes of it that are. */
uint64_t data_copy_disk_bytes(const struct data_copy *c);
DEFINE_AUTO_FINI(struct data_copy, data_copy_fini)

/** Where piece @i of @pieces starts in their host copy; with @i == n, its total. Pure. */
uint64_t data_offset(const struct data_piece *pieces, size_t i);

/** Called now and then with bytes moved so far; <0 cancels with that code. May be NULL. */
typedef int (*data_progress_fn)(void *arg, uint64_t done_bytes);

struct data_session;
/** Errors to act on: those of broker_open(). @b is borrowed for this call. */
int data_open(struct data_session **ret, struct broker *b, struct brumate_error *err);
/** Ends what is under way, and waits a little until the broker has let go of it. Accepts NULL. */
void data_close(struct data_session *s);
DEFINE_AUTO(struct data_session *, data_close)

/** From now on the GPU computes digests beside copies: chunks that are all zero are not copied out, host
 * copies get their digests, and what was copied in is compared with them (-EBADMSG). */
void data_want_digests(struct data_session *s);

/** From now on memory that is copied out may be written meanwhile; with digests, which are of what was
 * copied. -ENOSPC: no room on a GPU for the buffers it goes through. */
void data_want_live(struct data_session *s);

/** Of the last data_out() or data_update(): what was not copied, being zero or unchanged. */
struct data_spared {
	uint64_t zero_bytes, same_bytes;
};
struct data_spared data_spared(const struct data_session *s);

/** Tells early what the next data_out() will copy, so that GPUs are opened and host memory is made ready
 * meanwhile; returns at once. What fails by it is told by data_out(). */
int data_prepare(struct data_session *s, const struct data_piece *pieces, size_t n,
		 struct brumate_error *err);

/** Host memory for a copy of @total_bytes, from the pool where it has room, zeroed; what is on a disk is
 * to be written before it is read. -ENOSPC says how much is there. */
int data_alloc(struct data_session *s, uint64_t total_bytes, struct data_copy *ret,
	       struct brumate_error *err);

/** From now on memory of data_alloc() may hold what it held before: the caller writes all of it that is read. */
void data_want_as_is(struct data_session *s);

/** During data_out(), in its thread: the first @n_whole segments of @copy, which has no others yet, hold what
 * they will hold. @digests of their chunks; NULL: they are not known. Called again as there are more, but
 * not of a copy that is on a disk in part. What was told stays true if data_out() fails after all. */
typedef void (*data_whole_fn)(void *arg, const struct data_copy *copy, size_t n_whole,
			      const struct digest *digests);
void data_want_whole(struct data_session *s, data_whole_fn fn, void *arg);

/** Copies pieces, whose memory @fds (borrowed) hold, into a fresh host copy. Errors to act on: -EPIPE
 * (broker died: again with a new session), -ENOSPC, -ENOMEM, -EIO (the driver's text). The memory stays. */
int data_out(struct data_session *s, const struct data_piece *pieces, size_t n, const int *fds,
	     struct data_copy *ret, data_progress_fn progress, void *arg,
	     struct brumate_error *err);

/**
 * As data_out(), but brings the host copy @base of the same layout up to date in place, which copies
 * only what has changed if its digests are whole. They are void from before the first byte is
 * written to the end, so a base that a failure left half done is known as that by everyone who holds it.
 */
int data_update(struct data_session *s, const struct data_piece *pieces, size_t n, const int *fds,
		struct data_copy *base, data_progress_fn progress, void *arg,
		struct brumate_error *err);

/** During data_in(), in its thread: the device memory of all pieces is there (@fds, in their order,
 * borrowed), and the first @n_filled are filled. Only the end of data_in() tells whether with the right
 * bytes. Called again as more are. */
typedef void (*data_filled_fn)(void *arg, const int *fds, size_t n_filled);
void data_want_filled(struct data_session *s, data_filled_fn fn, void *arg);

/** Makes device memory for the pieces, fills it from @from, and gives its fds (owned by the caller),
 * which alone keep it. Errors to act on: as data_out(); -ENOSPC: no room on a GPU, text says which. */
int data_in(struct data_session *s, const struct data_piece *pieces, size_t n,
	    const struct data_copy *from, int *ret_fds, data_progress_fn progress, void *arg,
	    struct brumate_error *err);

/** Whether all that the last data_in() brought was compared with digests, not only what a GPU had room to. */
bool data_was_compared(const struct data_session *s);
