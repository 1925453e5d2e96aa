// SPDX-License-Identifier: MIT
/*
 * Feeds a stream (client/transfer-session.h) with chunks that several threads read at a time, in any order, each
 * directly into its place in a slot. The feed decides which chunks are sent, in which order the GPUs get them, into
 * which slot each goes, and when a slot is complete. First feed_chunk_is() states the kind of every chunk of the host
 * copy, then feed_plan() puts them in order. After that each item is a chunk that is to be read.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/transfer-session.h"

struct feed;

enum feed_kind {
	FEED_NONE,   /* not stated yet */
	FEED_READ,   /* it is read from the checkpoint */
	FEED_ZERO,   /* zeros, which the GPU does not know and so are sent */
	FEED_SPARED, /* zeros that the GPU makes itself: not sent */
};

/** For the host copy of the @n pieces, which are borrowed. Returns 0 or -ENOMEM. */
int feed_new(struct feed **ret, const struct device_piece *pieces, size_t n);
/** No thread uses it any more. Accepts NULL. */
void feed_free(struct feed *f);
DEFINE_AUTO(struct feed *, feed_free)

/** The number of chunks of the host copy. */
size_t feed_n_chunks(const struct feed *f);
void feed_chunk_is(struct feed *f, size_t chunk, enum feed_kind kind);

/** Returns 0; -ENOMEM; -ENODATA: the kind of some chunk was not stated, or pieces are not whole chunks. */
int feed_plan(struct feed *f);
/** The number of items, and the chunk of each. */
size_t feed_n(const struct feed *f);
size_t feed_chunk(const struct feed *f, size_t item);

/** To be called in begin() of transfer_client_stream(). @c: the session, borrowed until the end. */
int feed_begin(struct feed *f, struct transfer_client *c, int fd, size_t n_slots,
	       struct brumate_error *err);
/** These slots are free again. */
void feed_freed(struct feed *f, uint32_t slots);
/** Ends all waiting: the stream has ended, or its result is not needed any more. */
void feed_stop(struct feed *f);

/* For the readers. Admitted items may be filled in any order. */

/** Makes room for @item and all before it. With @block, waits for it; the caller must not hold other items unfilled. Returns 1; 0: no
 * room yet; -ECANCELED: stopped. */
int feed_admit(struct feed *f, size_t item, bool block);
/** The room of @item, which is admitted: CHUNK_BYTES_MAX. */
void *feed_room(struct feed *f, size_t item);
/** Marks @item as filled. Returns 0 or -ECANCELED. */
int feed_filled(struct feed *f, size_t item);
/** All items are filled: sends the windows that have none. Returns 0 once everything is sent, regardless of how the
 * stream goes on, or -ECANCELED. */
int feed_finish(struct feed *f);
