// SPDX-License-Identifier: MIT
/*
 * Sharing with earlier checkpoints of a store: an index of their chunks, so that a new checkpoint need not write
 * those, and the choice of packs to link.
 *
 * The index is bounded: the checkpoints of the same job come first, newest first, then the newest of other jobs of
 * the same user. Unreadable ones are skipped. The chunks themselves are not read: they were digested when they were
 * written, and are again when they are verified or restored.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "chunks/chunks.h"
#include "chunks/ledger.h"
#include "image/chunk-table.h"

/** The place of a chunk: the checkpoint in the index, and the chunk's index in its table. */
struct chunk_place {
	uint32_t image, chunk;
};

struct chunk_index;

/* The most checkpoints that are considered. */
enum { CHUNK_INDEX_OFFERS_MAX = 64 };

/** 0 or -ENOMEM. */
int chunk_index_new(struct chunk_index **ret);

/** Offers an earlier checkpoint, the last changed one first. If it is suitable, takes @dir_fd and @manifest. @key_id:
 * of the key with which shared chunks must be encrypted; empty for none. */
void chunk_index_offer(struct chunk_index *x, int *dir_fd, struct manifest *manifest,
		       const struct chunks_options *options, const char *key_id);

/** Reads the tables of the offered checkpoints. Chunks can be found after that. 0 or -ENOMEM. */
int chunk_index_read(struct chunk_index *x);

void chunk_index_free(struct chunk_index *x); /* accepts NULL */
DEFINE_AUTO(struct chunk_index *, chunk_index_free)

/** Finds a chunk, and where it is. From any thread. */
bool chunk_index_find(const struct chunk_index *x, const struct digest *digest, uint32_t len_bytes,
		      struct chunk_place *ret);

/**
 * Links packs into @dir_fd that hold chunks known by @l and of which enough is used, a quarter. Chunks of other packs
 * become LEDGER_WANTED; @ret_wanted is their number. No other thread may use @l. 0, -ENOMEM or -EFBIG.
 */
int share_packs(struct ledger *l, const struct chunk_index *x, int dir_fd, size_t *ret_wanted);
