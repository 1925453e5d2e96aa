// SPDX-License-Identifier: MIT
/*
 * Digests of a host copy's chunks, in a memfd that its holders keep beside its segments. The broker
 * writes it: it is marked void before a byte of the copy is, and whole after the last, so that whoever
 * dies in between leaves no table that tells of other bytes than there are.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/chunk.h"
#include "base/cleanup.h"

struct digest_table {
	int fd;
	size_t n; /* chunks of CHUNK_BYTES_MAX */
	struct digest_file *file;
};

/** A void table for a copy of @total_bytes. 0 or -errno. */
int digest_table_new(struct digest_table **ret, uint64_t total_bytes);

/** The table that @fd (borrowed, not trusted) is, for a copy of @total_bytes. -EBADF: it is none. */
int digest_table_open(struct digest_table **ret, int fd, uint64_t total_bytes);

void digest_table_free(struct digest_table *t); /* accepts NULL */
DEFINE_AUTO(struct digest_table *, digest_table_free)

/** Whether it tells what is in the copy. */
bool digest_table_is_whole(const struct digest_table *t);
void digest_table_set_whole(struct digest_table *t, bool whole);

/** The @n digests. */
struct digest *digest_table_digests(struct digest_table *t);
