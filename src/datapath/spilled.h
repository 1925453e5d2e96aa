// SPDX-License-Identifier: MIT
/*
 * The segments of a host copy that are in files. They cannot be mapped: they are read through these functions, which decrypt. Any number of threads may use them at a time.
 */
#pragma once

#include "client/transfer-session.h"

struct spilled;

/** Opens the segments of @copy by descriptors of its own. @ret is NULL if all of it is in memory. */
int spilled_open(struct spilled **ret, const struct host_copy *copy, struct brumate_error *err);
/** Accepts NULL. */
void spilled_free(struct spilled *s);
DEFINE_AUTO(struct spilled *, spilled_free)

/** Whether segment @i is in a file. Accepts NULL. */
bool spilled_has(const struct spilled *s, size_t i);

/** A place in the host copy from which the store reads bytes: pass spilled_source_read() as chunks_source_fn, with
 * this as its argument. It lives as long as @s. */
void *spilled_source(struct spilled *s, uint64_t offset);
int spilled_source_read(void *source, uint64_t offset, void *buf, size_t len_bytes);

/** Chains @s before @older: both are freed with @s. */
void spilled_chain(struct spilled *s, struct spilled *older);
