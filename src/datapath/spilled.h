// SPDX-License-Identifier: MIT
/*
 * Bytes of a host copy's segments that are on a disk, which nobody maps: read and written, decrypted and
 * encrypted on the way. Any number of threads at a time.
 */
#pragma once

#include "client/transfer-session.h"

struct spilled;

/** Opens the segments of @copy, by descriptors of its own. @ret is NULL where all of it is in memory. */
int spilled_open(struct spilled **ret, const struct host_copy *copy, struct brumate_error *err);
/** Accepts NULL. */
void spilled_free(struct spilled *s);
DEFINE_AUTO(struct spilled *, spilled_free)

/** Whether segment @i is on the disk. Accepts NULL. */
bool spilled_has(const struct spilled *s, size_t i);

/** Bytes at @offset of the host copy, all of them in one segment that is on the disk. Multiples of
 * SEAL_DISK_UNIT_BYTES. 0 or -errno. */
int spilled_read(const struct spilled *s, uint64_t offset, void *buf, size_t len_bytes);
/** @data NULL: zeros. */
int spilled_write(const struct spilled *s, uint64_t offset, const void *data, size_t len_bytes);

/** A place in the host copy from which the store asks for bytes: chunks_source_fn is
 * spilled_source_read(), its argument this, which lives as long as @s. */
void *spilled_source(struct spilled *s, uint64_t offset);
int spilled_source_read(void *source, uint64_t offset, void *buf, size_t len_bytes);

/** Chains @s before @older: both are freed with @s. */
void spilled_chain(struct spilled *s, struct spilled *older);
