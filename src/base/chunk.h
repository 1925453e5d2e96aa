// SPDX-License-Identifier: MIT
/*
 * The digest that identifies a chunk of memory (docs/image-format.md, "Chunk digest"): a tree of SHA-256 of two
 * levels, so that a GPU computes it with a group of threads for each leaf, and a CPU with libcrypto. Pure except for
 * libcrypto's own state; any number of threads at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"

enum {
	CHUNK_BYTES_MAX = 2 << 20,
	CHUNK_LEAF_BYTES = 4096,
	CHUNK_LEAVES_MAX = CHUNK_BYTES_MAX / CHUNK_LEAF_BYTES,
	CHUNK_KEY_BYTES = 32,
};

/** A secret; without it, digests computed with it reveal nothing about the chunks. */
struct chunk_key {
	uint8_t bytes[CHUNK_KEY_BYTES];
};

/** The number of leaves of a chunk of @len_bytes. */
static inline size_t chunk_leaves(size_t len_bytes)
{
	return (len_bytes + CHUNK_LEAF_BYTES - 1) / CHUNK_LEAF_BYTES;
}

/** Digest of a chunk. 0, -EINVAL (longer than CHUNK_BYTES_MAX), or -ENOMEM. */
int chunk_digest(struct digest *ret, const void *buf, size_t len_bytes);

/** Like chunk_digest(), with @key. */
int chunk_digest_keyed(struct digest *ret, const struct chunk_key *key, const void *buf,
		       size_t len_bytes);

/** chunk_digest() of CHUNK_BYTES_MAX zeros. 0 or -ENOMEM. */
int chunk_digest_zeros(struct digest *ret);

/** True if all bytes of @buf are zero, or it is empty. */
bool chunk_is_zero(const void *buf, size_t len_bytes);
