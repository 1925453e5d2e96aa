// SPDX-License-Identifier: MIT
/* Chunks as they are stored: raw, LZ4 blocks or Zstandard frames. One codec per thread. */
#pragma once

#include <stddef.h>

#include "base/cleanup.h"
#include "image/chunk-table.h"

struct codec;

/** 0 or -ENOMEM. */
int codec_new(struct codec **ret);
void codec_free(struct codec *c); /* accepts NULL */
DEFINE_AUTO(struct codec *, codec_free)

/** Compresses a chunk. Returns the bytes, which fit into @room; 0 if they do not. */
size_t codec_compress(struct codec *c, enum chunk_encoding encoding, void *ret, size_t room,
		      const void *buf, size_t len_bytes);

/**
 * Gives the bytes of a chunk: @stored itself if it is raw, else memory of the codec that is good until
 * the next call. NULL: it is damaged.
 */
const void *codec_expand(struct codec *c, const struct chunk_record *chunk, const void *stored);
