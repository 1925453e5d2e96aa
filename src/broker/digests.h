// SPDX-License-Identifier: MIT
/*
 * The digests of the chunks of a host copy: those in its table, and those that the GPU computes during the transfer,
 * of memory that goes out to the copy or has come in from it. The GPU computes digests about ten times as fast as the
 * link moves data.
 */
#pragma once

#include "broker/lane.h"

/* What is done with a chunk: it is copied, it is all zero, or the host copy has it already. */
enum chunk_fate { CHUNK_COPY, CHUNK_ZERO, CHUNK_KEEP };

/** For the transfer's layout, before it starts. @fd: of the digest table, borrowed; -1: there is none. */
int digests_new(struct transfer *t, int fd, struct brumate_error *err);
/** Accepts NULL. */
void digests_free(struct digests *d);

/** Whether a table says what is in the host copy. */
bool digests_are_known(const struct transfer *t);
/** What to do with the bytes at @offset of the host copy, whose digests are known: on the way out those that the GPU
 * computed, on the way in those of the table, with digests_are_known(). Reduces *bytes, a multiple of 2 MiB, to the
 * chunks of the same fate. */
enum chunk_fate digests_fate(const struct transfer *t, uint64_t offset, uint64_t *bytes);
/** Requests the segments for bytes whose fate is known. Returns whether, on the way in, one of them will not be
 * pinned. */
bool digests_want(const struct transfer *t, uint64_t offset, uint64_t bytes);
/** On the way out, once the digests of all lanes are known: which segments of the host copy need memory (owned); NULL:
 * out of memory. */
bool *digests_find_needed(const struct transfer *t);
/** Adds the digests of @n chunks from @offset on. -EBADMSG: on the way in, they differ from the table. */
int digests_learn(struct transfer *t, uint64_t offset, const struct digest *digests,
		  const bool *zero, size_t n, struct brumate_error *err);

/** Writes the digests of the chunks from @start to before @end of the host copy to the table, before the table is
 * complete. Returns false if some are unknown, or there is no table. */
bool digests_tell(struct transfer *t, uint64_t start, uint64_t end);
/** After the copies: marks the table as valid if all digests are known. */
void digests_finish(struct transfer *t);
/** Whether all memory that came in was compared. */
bool digests_are_compared(const struct transfer *t);

/** Prepares the lane's GPU for computing digests; on failure everything is copied. */
void digests_open_lane(struct lane *l);
void digests_close_lane(struct lane *l);
/** Makes the GPU compute the digests of the lane's pieces: on the way out ahead of the copies, which wait for them;
 * on the way in after the copies. Returns 0 when all are done. */
int digests_compute(struct lane *l, struct brumate_error *err);
