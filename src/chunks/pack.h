// SPDX-License-Identifier: MIT
/*
 * New packs of a checkpoint: files below its "memory" directory to which one thread appends chunks,
 * each at a multiple of CHUNK_ALIGN_BYTES, through chunks/io.h. A full pack is ended and another begun.
 */
#pragma once

#include <stdint.h>

#include "chunks/io.h"
#include "chunks/ledger.h"

/* Where a pack ends and the next begins: small enough that one goes away when little of it is used. */
#define PACK_BYTES_MAX (1ull << 30)

/** Where a thread appends. The path of a new pack goes to @begun. */
struct pack {
	struct io *io; /* borrowed */
	int dir_fd;    /* of "memory"; borrowed */
	struct io_file *file;
	uint64_t end;
	uint32_t number;
	char path[32]; /* below the checkpoint */
};

/** Makes sure that a pack is there that a chunk can be appended to. 1: it is a new one, whose path is
 * in @ret_path; the caller numbers it. 0; -errno. */
int pack_prepare(struct pack *p, char ret_path[static 32]);

/** True if it has so much in it that pack_finish() is to come before the next pack_prepare(). */
bool pack_is_full(const struct pack *p);

/** Appends @len_bytes of @buf, which must stay as they are until pack_finish() if they and @buf are
 * multiples of IO_ALIGN_BYTES; else they are copied. Returns where (in @ret_offset); -errno. */
int pack_append(struct pack *p, const void *buf, size_t len_bytes, uint64_t *ret_offset);

/** Appends @len_bytes of @b, which is taken. */
int pack_append_buffer(struct pack *p, struct io_buffer *b, size_t len_bytes, uint64_t *ret_offset);

/** Waits for the writes, syncs, closes. @ret_len_bytes: its length. Nothing if there is no pack. */
int pack_finish(struct pack *p, uint64_t *ret_len_bytes);

/** Closes it without any of that. */
void pack_abandon(struct pack *p);
