// SPDX-License-Identifier: MIT
/*
 * The parts of a host copy, as descriptors that its holders pass to each other and do not trust: segments in memory,
 * segments on a disk with the key that encrypts them, and a table of digests.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/chunk.h"
#include "base/cleanup.h"
#include "base/seal.h"

/* ---- segments in memory ---- */

/** Whether @fd is memory of @len_bytes that cannot be shrunk under a process that maps it. 0 or -errno; -EBADF or
 * -EINVAL: it is something else. */
int segment_check(int fd, uint64_t len_bytes);

/*
 * ---- segments on a disk ----
 *
 * Unnamed files, which like memfds are gone with their last holder, and whose bytes are encrypted. The key is random,
 * one for each copy, in a sealed memfd that the copy's holders keep with its segments. It is never on a disk, so what
 * a crash leaves there cannot be read. Such a segment is never mapped.
 */

/** Makes a fresh key, and a memfd (owned) that contains it. 0 or -errno. */
int spill_key_new(struct seal_disk_key *ret, int *ret_fd);

/** Reads the key in @fd (borrowed, not trusted). -EBADF: it is not a key. */
int spill_key_read(struct seal_disk_key *ret, int fd);

/** Whether @fd (borrowed, not trusted) is a segment on a disk, of @len_bytes. */
bool spill_is_segment(int fd, uint64_t len_bytes);
/** Opens such a segment again (owned): with O_DIRECT if possible, because what is read once need not stay in the page
 * cache. -errno. */
int spill_open(int fd);

/** Reads bytes [at, at + len_bytes) of a host copy. @fd is the segment that contains them, and begins at @start of
 * the copy. All are multiples of SEAL_DISK_UNIT_BYTES; so is the address of @buf if the file is open for O_DIRECT. 0
 * or -errno; -EIO: the file is too short. */
int spill_read(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
	       size_t len_bytes);
/** Like spill_read(), for writing. Encrypts @buf in place, which destroys its content. */
int spill_write(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
		size_t len_bytes);

/*
 * ---- digests ----
 *
 * The digests of a host copy's chunks are in a memfd that its holders keep with its segments. The broker writes it:
 * it marks the table invalid before it writes the first byte of the copy, and valid after the last. So if the broker
 * dies in between, no table describes bytes that are not there.
 */

struct digest_table {
	int fd;
	size_t n; /* chunks of CHUNK_BYTES_MAX */
	struct digest_file *file;
};

/** Makes an invalid table for a copy of @total_bytes. 0 or -errno. */
int digest_table_new(struct digest_table **ret, uint64_t total_bytes);

/** Opens the table in @fd (borrowed, not trusted) for a copy of @total_bytes. -EBADF: it is not a table. */
int digest_table_open(struct digest_table **ret, int fd, uint64_t total_bytes);

void digest_table_free(struct digest_table *t); /* accepts NULL */
DEFINE_AUTO(struct digest_table *, digest_table_free)

/** Whether the table is valid. */
bool digest_table_is_whole(const struct digest_table *t);
void digest_table_set_whole(struct digest_table *t, bool whole);

/** The @n digests. */
struct digest *digest_table_digests(struct digest_table *t);
