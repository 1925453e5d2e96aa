// SPDX-License-Identifier: MIT
/* Comparing the chunks of packs with their digests while they pass in a stream. */
#pragma once

#include "chunks/reader.h"

struct pack_check;

/** Reads the table of the checkpoint @dir_fd, borrowed as is @m. What chunks_open() returns. */
int pack_check_new(struct pack_check **ret, int dir_fd, const struct manifest *m,
		   struct brumate_error *err);
void pack_check_free(struct pack_check *c); /* accepts NULL */
DEFINE_AUTO(struct pack_check *, pack_check_free)

/** The bytes of the pack @index of the manifest come next. */
void pack_check_begin(struct pack_check *c, size_t index);

/** Takes bytes of it, at most all of them. -EBADMSG: a chunk is damaged. */
int pack_check_feed(struct pack_check *c, const void *buf, size_t len_bytes,
		    struct brumate_error *err);
