// SPDX-License-Identifier: MIT
/*
 * Which encoding a chunk gets. One per thread, which learns from its own work what a byte costs: to
 * hand over to the disk, which takes longer the more that is behind, and to compress. The cheapest sum
 * wins, so that a disk that keeps up gets its chunks raw, a slow one compressed, and what does not
 * compress is tried on a small sample only.
 */
#pragma once

#include <stdint.h>

#include "chunks/codec.h"
#include "chunks/chunks.h"

struct tuner {
	enum chunks_compress wish;
	double append_ns;		/* of a stored byte */
	double compress_ns[CHUNK__MAX]; /* of a byte that goes in */
};

struct tuner tuner_new(enum chunks_compress wish);

/** Chooses for a chunk. */
enum chunk_encoding tuner_choose(struct tuner *t, struct codec *c, const void *buf,
				 size_t len_bytes);

/** Compressing a chunk of @len_bytes took @ns. */
void tuner_compressed(struct tuner *t, enum chunk_encoding encoding, size_t len_bytes, uint64_t ns);

/** @stored_bytes were handed to the disk, which took @ns of waiting. */
void tuner_appended(struct tuner *t, size_t stored_bytes, uint64_t ns);
