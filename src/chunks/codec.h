// SPDX-License-Identifier: MIT
/* Chunks as they are stored: raw, LZ4 blocks or Zstandard frames. A thread has a codec of its own, and a tuner
 * that chooses among them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "chunks/chunks.h"
#include "image/chunk-table.h"

struct codec;

/** 0 or -ENOMEM. */
int codec_new(struct codec **ret);
void codec_free(struct codec *c); /* accepts NULL */
DEFINE_AUTO(struct codec *, codec_free)

/** Compresses a chunk into @ret. Returns how many bytes that makes, or 0 if @room is too little. */
size_t codec_compress(struct codec *c, enum chunk_encoding encoding, void *ret, size_t room,
		      const void *buf, size_t len_bytes);

/**
 * Returns the bytes of a chunk: @stored itself if it is raw, else memory of the codec that is good until the next
 * call. Returns NULL if the chunk is damaged.
 */
const void *codec_expand(struct codec *c, const struct chunk_record *chunk, const void *stored);

/* ---- tuner ---- */

/**
 * Which encoding a chunk gets. A tuner learns from the work of its thread what a byte costs: to hand over to the
 * disk, which takes longer the more is behind, and to compress. The cheapest sum wins, so that a disk that keeps
 * up gets its chunks raw, a slow one gets them compressed, and what does not compress is tried on a small sample
 * only.
 */
struct tuner {
	enum chunks_compress wish;
	double append_ns;		/* of a stored byte */
	double compress_ns[CHUNK__MAX]; /* of a byte that goes in */
};

struct tuner tuner_new(enum chunks_compress wish);

/** Chooses the encoding of a chunk. */
enum chunk_encoding tuner_choose(struct tuner *t, struct codec *c, const void *buf,
				 size_t len_bytes);

/** Notes that it took @ns to compress a chunk of @len_bytes. */
void tuner_compressed(struct tuner *t, enum chunk_encoding encoding, size_t len_bytes, uint64_t ns);

/** Notes that it took @ns to hand @stored_bytes to the disk. */
void tuner_appended(struct tuner *t, size_t stored_bytes, uint64_t ns);
