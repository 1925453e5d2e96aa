// SPDX-License-Identifier: MIT
/* How much memory there is to be had, for host copies. */
#pragma once

#include <stdint.h>

/** Bytes that this process can still take: what the machine has available, as far as the memory limits
 * of its cgroup and of those above it allow. */
uint64_t room_memory_bytes(void);
