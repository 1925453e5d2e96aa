// SPDX-License-Identifier: MIT
/* What this machine has, as far as this process may use it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/** The value @key of /proc/meminfo ("MemAvailable"), in bytes. False, and nothing written, where it does
 * not tell. */
bool machine_meminfo(const char *key, uint64_t *ret_bytes);

/** Cores that this process may run on, at least 1. */
unsigned machine_cores(void);
