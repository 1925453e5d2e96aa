// SPDX-License-Identifier: MIT
/*
 * What is known of the chunks of a host copy: the digests that it has, from its table, and those that
 * the GPU computes beside the copies, of the memory that goes out to it or that has come in from it. The
 * GPU is some ten times as fast with them as the link is.
 */
#pragma once

#include "broker/lane.h"

/* What becomes of a chunk: it is copied, it is all zero, or the host copy has it already. */
enum chunk_fate { CHUNK_COPY, CHUNK_ZERO, CHUNK_KEEP };

/** For the transfer's layout, before it starts. @fd: borrowed, of the digest table; -1: there is none. */
int digests_new(struct transfer *t, int fd, struct brumate_error *err);
/** Accepts NULL. */
void digests_free(struct digests *d);

/** Whether there is a table that tells what is in the host copy. */
bool digests_are_known(const struct transfer *t);
/** What is to become of the bytes at @offset of the host copy, whose digests are known: on the way out those
 * that the GPU computed, on the way in those of the table, with digests_are_known(). *bytes, a
 * multiple of 2 MiB, is cut to those that share the fate. */
enum chunk_fate digests_fate(const struct transfer *t, uint64_t offset, uint64_t *bytes);
/** Has the segments made ready that are needed for bytes whose fate is known. Returns whether, on the way
 * in, one of them will not be pinned. */
bool digests_want(const struct transfer *t, uint64_t offset, uint64_t bytes);
/** Takes the digests of @n chunks from @offset on. -EBADMSG: on the way in, they are not those of the table. */
int digests_learn(struct transfer *t, uint64_t offset, const struct digest *digests,
		  const bool *zero, size_t n, struct brumate_error *err);

/** Puts the digests of the chunks from @start to before @end of the host copy into the table, before it is
 * whole. Returns false if some are not known, or there is no table. */
bool digests_tell(struct transfer *t, uint64_t start, uint64_t end);
/** The copies are done: the table tells what is in the host copy, if all of it is known. */
void digests_finish(struct transfer *t);
/** Whether all that came in was compared. */
bool digests_are_compared(const struct transfer *t);

/** Opens what the GPU computes digests with; without that, all is copied. */
void digests_open_lane(struct lane *l);
void digests_close_lane(struct lane *l);
/** Has the GPU compute the digests of the lane's pieces: on the way out ahead of the copies, which wait for
 * that; on the way in behind them. Returns 0 when there are no more. */
int digests_compute(struct lane *l, struct brumate_error *err);
