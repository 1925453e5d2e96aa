// SPDX-License-Identifier: MIT
/*
 * SHA-256 of many messages of equal length: one in each vector lane, which on a CPU with AVX-512 is more than twice
 * as fast as its SHA instructions with one message after the other; or with these, two messages at a time. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/digest.h"

enum {
	SHA256_LANES = 16,
	SHA256_BLOCK_BYTES = 64,
};

/** Whether this CPU has the instructions for it. */
bool sha256_has_lanes(void);

/**
 * Digests of SHA256_LANES messages of @len_bytes each (a multiple of SHA256_BLOCK_BYTES), one after the
 * other at @buf. Only where sha256_has_lanes().
 */
void sha256_lanes(struct digest *ret, const void *buf, size_t len_bytes);
