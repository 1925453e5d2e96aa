// SPDX-License-Identifier: MIT
/*
 * Feeding a stream (client/transfer-session.h) with chunks that several threads read at a time, in any order, each straight
 * into its place in a slot: which chunks there are, in which order the GPUs want them, which slot they go to, and when
 * a slot is full.
 *
 * First feed_chunk_is() says of each chunk of the host copy that there would be where it comes from, then
 * feed_plan() puts them in order. From then on each item is a chunk that is to be read.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/transfer-session.h"

struct feed;

enum feed_kind {
	FEED_NONE,   /* nobody has said */
	FEED_READ,   /* it is read */
	FEED_ZERO,   /* zeros, and the GPU does not know that */
	FEED_SPARED, /* the GPU makes zeros of its own */
};

/** For the host copy of the @n pieces, which are borrowed. 0 or -ENOMEM. */
int feed_new(struct feed **ret, const struct device_piece *pieces, size_t n);
/** Nobody feeds it any more. Accepts NULL. */
void feed_free(struct feed *f);
DEFINE_AUTO(struct feed *, feed_free)

/** How many chunks the host copy has. */
size_t feed_n_chunks(const struct feed *f);
void feed_chunk_is(struct feed *f, size_t chunk, enum feed_kind kind);

/** 0, -ENOMEM, or -ENODATA: of some chunk nobody has said where it comes from, or pieces are not of whole
 * chunks. */
int feed_plan(struct feed *f);
/** How many items there are, and which chunk each is. */
size_t feed_n(const struct feed *f);
size_t feed_chunk(const struct feed *f, size_t item);

/** What transfer_client_stream() asks to begin(), for the session @c (borrowed to the end). */
int feed_begin(struct feed *f, struct transfer_client *c, int fd, size_t n_slots,
	       struct brumate_error *err);
/** These slots are free again. */
void feed_freed(struct feed *f, uint32_t slots);
/** Nothing is to be waited for any more: the stream has ended, or will be of no use. */
void feed_stop(struct feed *f);

/* The readers. Items are admitted in their order; then they may be filled in any. */

/** Whether there is room for @item; with @block it waits for some, and its caller has none to fill. Returns 1, 0 or
 * -ECANCELED: it is stopped. */
int feed_admit(struct feed *f, size_t item, bool block);
/** The room for @item, which is admitted: CHUNK_BYTES_MAX. */
void *feed_room(struct feed *f, size_t item);
/** It is filled. 0, or -ECANCELED. */
int feed_filled(struct feed *f, size_t item);
/** All items are filled: sends what there is beside them. 0 if all is sent then, however the stream goes on, or
 * -ECANCELED. */
int feed_finish(struct feed *f);
