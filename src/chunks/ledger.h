// SPDX-License-Identifier: MIT
/*
 * The writer's record of the chunks and packs of its checkpoint. Each distinct chunk is in it once. At the end it
 * becomes the chunk table. It has no lock of its own.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "image/chunk-table.h"
#include "image/manifest.h"

enum ledger_state {
	LEDGER_WRITTEN, /* in a pack of this checkpoint, or about to be */
	LEDGER_KNOWN,	/* an earlier checkpoint has it */
	LEDGER_WANTED,	/* was known, but its pack is not linked, so it has to be written */
};

struct ledger_chunk {
	struct chunk_record record; /* written: pack is the ledger's index */
	enum ledger_state state;
	uint32_t image, index; /* known: its place (chunks/share.h) */
	bool dead;	       /* part of a linked pack; no region uses it */
};

struct ledger_pack {
	char path[32]; /* below the checkpoint */
	bool linked;
	uint64_t len_bytes;
};

struct ledger {
	struct ledger_chunk *chunks;
	size_t n_chunks;
	uint32_t *slots; /* open hash of chunks by their digest: index + 1 */
	size_t n_slots;	 /* a power of 2 */
	struct ledger_pack *packs;
	size_t n_packs;
	uint32_t *parts; /* of all regions, as in the table */
	size_t n_parts, parts_room;
};
#define LEDGER_EMPTY ((struct ledger){ 0 })
void ledger_fini(struct ledger *l);

/** Adds @n parts, initially zeros. Returns the index of the first, -ENOMEM or -EFBIG. */
int64_t ledger_add_parts(struct ledger *l, uint64_t n);

/** Returns the index of the chunk with this digest and length, or -ENOENT. */
int64_t ledger_find(const struct ledger *l, const struct digest *digest, uint32_t len_bytes);

/** Adds a chunk that is not in the ledger yet. Returns its index, -ENOMEM or -EFBIG. */
int64_t ledger_add_chunk(struct ledger *l, const struct ledger_chunk *c);

/** Adds a pack; returns its index, -ENOMEM or -EFBIG. */
int64_t ledger_add_pack(struct ledger *l, const struct ledger_pack *p);

/**
 * Makes the table: packs in the order of their paths, chunks in the order of packs and offsets. Every chunk must be
 * written. Regions have the lengths of those in @m, whose packs are filled in. 0 or -ENOMEM.
 */
int ledger_finish(struct ledger *l, struct chunk_table *ret, struct manifest *m);
