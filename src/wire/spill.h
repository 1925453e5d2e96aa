// SPDX-License-Identifier: MIT
/*
 * Segments of a host copy that are on a disk: files without a name, which are gone with their last
 * holder as memfds are, and hold their bytes encrypted. The key is random, one for each copy, in a sealed
 * memfd that the copy's holders keep beside its segments: it is nowhere on the disk, so what a machine
 * that went down leaves there cannot be read by anyone. Nobody maps such a segment.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/seal.h"

/** A fresh key, and the memfd (owned) that it is in. 0 or -errno. */
int spill_key_new(struct seal_disk_key *ret, int *ret_fd);

/** The key that @fd (borrowed, not trusted) is. -EBADF: it is none. */
int spill_key_read(struct seal_disk_key *ret, int fd);

/** Whether @fd (borrowed, not trusted) is a segment on a disk, of @len_bytes. */
bool spill_is_segment(int fd, uint64_t len_bytes);

/** Bytes [at, at + len_bytes) of a host copy, in the segment that @fd is of and that begins at @start of
 * the copy. All are multiples of SEAL_DISK_UNIT_BYTES, and @buf's address is where the file is open for
 * O_DIRECT. 0 or -errno; -EIO: the file is too short. */
int spill_read(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
	       size_t len_bytes);
/** As spill_read(). What is in @buf is no more, after it. */
int spill_write(int fd, const struct seal_disk_key *key, uint64_t start, uint64_t at, void *buf,
		size_t len_bytes);
