// SPDX-License-Identifier: MIT
/*
 * Sharing with earlier checkpoints of a store: an index of the chunks that they have, so that a new one need not
 * write them, and which of their packs it takes over. The index is bounded: the checkpoints of the same job come
 * first, newest first, then the newest of other jobs of the same user. What cannot be read is passed over. The
 * bytes are not read: they were digested when they were written, and are again when they are verified or
 * restored.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "chunks/chunks.h"
#include "chunks/ledger.h"
#include "image/chunk-table.h"

/** Where a chunk is: which of the checkpoints that were looked at, and its number in that one's table. */
struct chunk_place {
	uint32_t image, chunk;
};

struct chunk_index;

/* So many checkpoints are looked at. */
enum { CHUNK_INDEX_OFFERS_MAX = 64 };

/** 0 or -ENOMEM. */
int chunk_index_new(struct chunk_index **ret);

/** Offers an earlier checkpoint, the one that changed last first. If it is one to share with, @dir_fd and @manifest
 * are taken. @key_id: of the key that what is to be shared must be encrypted by; empty for none. */
void chunk_index_offer(struct chunk_index *x, int *dir_fd, struct manifest *manifest,
		       const struct chunks_options *options, const char *key_id);

/** Reads the tables of what was offered. After that chunks are found. 0 or -ENOMEM. */
int chunk_index_read(struct chunk_index *x);

void chunk_index_free(struct chunk_index *x); /* accepts NULL */
DEFINE_AUTO(struct chunk_index *, chunk_index_free)

/** Finds a chunk, and where it is. From any thread. */
bool chunk_index_find(const struct chunk_index *x, const struct digest *digest, uint32_t len_bytes,
		      struct chunk_place *ret);

size_t chunk_index_images(const struct chunk_index *x);

/** The table of an image. Borrowed. */
const struct chunk_table *chunk_index_table(const struct chunk_index *x, uint32_t image);

/**
 * Links the pack @pack of @image into the directory @dir_fd under its own name, whose path below the new
 * checkpoint goes to @ret_path. -errno: it cannot be had (removed meanwhile, too many links, no links
 * on this file system …).
 */
int chunk_index_link(const struct chunk_index *x, uint32_t image, uint32_t pack, int dir_fd,
		     char *ret_path, size_t room);

/**
 * Links packs into @dir_fd that hold chunks known by @l and of which enough is used, a quarter. Chunks of
 * the others become LEDGER_WANTED; @ret_wanted says how many. Nobody else uses @l meanwhile. 0, -ENOMEM or
 * -EFBIG.
 */
int share_packs(struct ledger *l, const struct chunk_index *x, int dir_fd, size_t *ret_wanted);
