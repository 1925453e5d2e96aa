// SPDX-License-Identifier: MIT
/* The lock that CRIU puts on a network while it saves its TCP connections: a table of nftables. */
#pragma once

#include <stdbool.h>

/** True where the kernel and our rights allow CRIU's nftables lock of TCP connections. */
bool net_lock_is_possible(void);
/** Removes table inet @name, the lock that a killed CRIU left. 0, -ENOENT, -errno. */
int net_lock_remove(const char *name);
