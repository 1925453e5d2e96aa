// SPDX-License-Identifier: MIT
/* Chunks as they are stored: raw, LZ4 blocks or Zstandard frames. Each thread has its own codec, and a tuner that
 * chooses the encoding. */
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

/** Compresses a chunk into @ret. Returns the number of bytes, or 0 if @room is too small. */
size_t codec_compress(struct codec *c, enum chunk_encoding encoding, void *ret, size_t room,
		      const void *buf, size_t len_bytes);

/**
 * Returns the bytes of a chunk: @stored itself if it is raw, else memory of the codec that is valid until the next
 * call. Returns NULL if the chunk is damaged.
 */
const void *codec_expand(struct codec *c, const struct chunk_record *chunk, const void *stored);

/* ---- tuner ---- */

/**
 * Chooses the encoding of each chunk. A tuner learns from the work of its thread what a byte costs: to hand over to
 * the disk, which takes longer the more is queued, and to compress. The smallest sum wins. So chunks are stored raw
 * on a disk that keeps up and compressed on a slow one, and if data does not compress, only a small sample is tried.
 */
struct tuner {
	enum chunks_compress wish;
	double append_ns;		/* per stored byte */
	double compress_ns[CHUNK__MAX]; /* per byte of input */
};

struct tuner tuner_new(enum chunks_compress wish);

/** Chooses the encoding of a chunk. */
enum chunk_encoding tuner_choose(struct tuner *t, struct codec *c, const void *buf,
				 size_t len_bytes);

/** Records that compressing a chunk of @len_bytes took @ns. */
void tuner_compressed(struct tuner *t, enum chunk_encoding encoding, size_t len_bytes, uint64_t ns);

/** Records that handing @stored_bytes to the disk took @ns. */
void tuner_appended(struct tuner *t, size_t stored_bytes, uint64_t ns);
