// SPDX-License-Identifier: MIT
/*
 * Reading one file ahead of whoever works on its bytes: a thread fills buffers while its owner hashes
 * or writes the ones before. For large files, where reading and hashing after each other would add up.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"

enum { AHEAD_BYTES = 2 << 20, AHEAD_BUFFERS = 4, AHEAD_WORTH_BYTES = 4 * AHEAD_BYTES };

struct ahead;

/** Starts to read @fd (borrowed) from its beginning, by pread(2). 0, -ENOMEM, -EAGAIN (no thread). */
int ahead_start(struct ahead **ret, int fd);

/**
 * The next bytes of the file in @ret, borrowed until the next call: how many, 0 at its end, -errno of
 * the read. One thread at a time.
 */
ssize_t ahead_next(struct ahead *a, const void **ret);

/** Stops reading and frees. Accepts NULL. */
void ahead_free(struct ahead *a);
DEFINE_AUTO(struct ahead *, ahead_free)
