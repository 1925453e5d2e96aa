// SPDX-License-Identifier: MIT
/*
 * The table of the memory in a checkpoint (docs/image-format.md, "The chunk table"): which bytes of which pack hold
 * which chunk, and which chunks each region consists of. Pure encode, decode and check; the decoder's input is
 * untrusted.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunk.h"
#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"

enum {
	CHUNK_TABLE_VERSION = 1,
	CHUNK_ALIGN_BYTES = 4096, /* of every chunk in its pack; zeros fill the rest */
	CHUNK_TABLE_BYTES_MAX = 1 << 30,
};

/** The index of a chunk of zeros, which is not stored. */
#define CHUNK_ZERO UINT32_MAX

enum chunk_encoding { CHUNK_RAW, CHUNK_LZ4, CHUNK_ZSTD, CHUNK__MAX };

/** A stored chunk. */
struct chunk_record {
	struct digest digest; /* of the chunk's bytes (base/chunk.h) */
	struct digest stored; /* of the bytes in the pack: @digest if raw and not sealed */
	uint64_t offset;      /* in the pack, a multiple of CHUNK_ALIGN_BYTES */
	uint32_t pack;
	uint32_t len_bytes;    /* 1 to CHUNK_BYTES_MAX */
	uint32_t stored_bytes; /* less than len_bytes, or the same if it is raw */
	enum chunk_encoding encoding;
};

/** A region: ⌈len_bytes / CHUNK_BYTES_MAX⌉ parts, all but the last of CHUNK_BYTES_MAX. */
struct chunk_region {
	uint64_t len_bytes;
	size_t first; /* of its parts; derived */
};

struct chunk_table {
	/* Stored bytes are encrypted: @digest of each chunk is keyed, and @stored is of the encrypted bytes, even if
	 * the chunk is raw. */
	bool sealed;
	/* In the order of the packs and without gaps: a pack begins with a chunk at 0 and ends with the padding of
	 * its last. Some chunks may not be used by this checkpoint. */
	struct chunk_record *chunks;
	size_t n_chunks;
	size_t n_packs;
	struct chunk_region *regions;
	size_t n_regions;
	uint32_t *
		parts; /* of all regions: the index of a chunk as long as the part, or CHUNK_ZERO */
	size_t n_parts;
};
#define CHUNK_TABLE_EMPTY ((struct chunk_table){ 0 })
void chunk_table_fini(struct chunk_table *t);
DEFINE_AUTO_FINI(struct chunk_table, chunk_table_fini)

/** The number of parts of a region of @len_bytes. */
static inline uint64_t chunk_parts(uint64_t len_bytes)
{
	return len_bytes / CHUNK_BYTES_MAX + (len_bytes % CHUNK_BYTES_MAX != 0);
}

/** The length of part @i of a region of @len_bytes. */
static inline uint32_t chunk_part_bytes(uint64_t len_bytes, uint64_t i)
{
	uint64_t left = len_bytes - i * CHUNK_BYTES_MAX;

	return left < CHUNK_BYTES_MAX ? (uint32_t)left : CHUNK_BYTES_MAX;
}

/** The space that @len_bytes take in a pack. */
static inline uint64_t chunk_padded(uint64_t len_bytes)
{
	return (len_bytes + CHUNK_ALIGN_BYTES - 1) / CHUNK_ALIGN_BYTES * CHUNK_ALIGN_BYTES;
}

/** The first chunk of pack @pack, and in @ret_n their number. */
const struct chunk_record *chunk_table_pack(const struct chunk_table *t, uint32_t pack,
					    size_t *ret_n);

/** The length that pack @pack must have. */
uint64_t chunk_table_pack_bytes(const struct chunk_table *t, uint32_t pack);

/** Encodes @t (owned by the caller). -EINVAL: it breaks a rule; -EFBIG; -ENOMEM. */
int chunk_table_encode(const struct chunk_table *t, void **ret, size_t *ret_len_bytes,
		       struct brumate_error *err);

/** Decodes and checks all rules above. @ret owned. -EBADMSG; -EPROTONOSUPPORT (of a newer writer);
 * -ENOMEM. */
int chunk_table_decode(struct chunk_table *ret, const void *buf, size_t len_bytes,
		       struct brumate_error *err);
