// SPDX-License-Identifier: MIT
/*
 * What a host copy is made of, as descriptors that its holders pass to each other and do not trust: segments in
 * memory, segments on a disk with the key of what is in them, and a table of digests.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunk.h"
#include "base/cleanup.h"
#include "base/seal.h"

/* ---- segments in memory ---- */

/** Whether @fd is memory of @len_bytes that nobody can shrink under whoever maps it. 0 or -errno; -EBADF
 * or -EINVAL: it is something else. */
int segment_check(int fd, uint64_t len_bytes);

/*
 * ---- segments on a disk ----
 *
 * Files without a name, which are gone with their last holder as memfds are, and hold their bytes encrypted. The
 * key is random, one for each copy, in a sealed memfd that the copy's holders keep beside its segments: it is
 * nowhere on the disk, so what a machine that went down leaves there cannot be read by anyone. Nobody maps such
 * a segment.
 */

/** A fresh key, and the memfd (owned) that it is in. 0 or -errno. */
int spill_key_new(struct seal_disk_key *ret, int *ret_fd);

/** The key that @fd (borrowed, not trusted) is. -EBADF: it is none. */
int spill_key_read(struct seal_disk_key *ret, int fd);

/** Whether @fd (borrowed, not trusted) is a segment on a disk, of @len_bytes. */
bool spill_is_segment(int fd, uint64_t len_bytes);
/** Opens such a segment anew (owned): past the page cache where that is possible, because what is read once need not stay
 * in memory. -errno. */
int spill_open(int fd);

/** Bytes [at, at + len_bytes) of a host copy, in the segment that @fd is of and that begins at @start of
 * the copy. All are multiples of SEAL_DISK_UNIT_BYTES, and @buf's address is where the file is open for
 * O_DIRECT. 0 or -errno; -EIO: the file is too short. */
int spill_read(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
	       size_t len_bytes);
/** As spill_read(). It encrypts @buf in place, so what was in it is gone. */
int spill_write(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
		size_t len_bytes);

/*
 * ---- digests ----
 *
 * The digests of a host copy's chunks stand in a memfd that its holders keep beside its segments. The broker
 * writes it: it is marked void before a byte of the copy is, and whole after the last, so that whoever dies in
 * between leaves no table that tells of other bytes than there are.
 */

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
