// SPDX-License-Identifier: MIT
/* News to the service manager, and descriptors that it keeps for us: the datagrams that sd_notify(3) describes. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/** Whether there is one that takes news. */
bool notify_is_wanted(void);

/** Sends it @state ("READY=1"), with @n descriptors (borrowed), at most PACKET_FDS_MAX. 0; -ENOENT: there is none; -errno. Never waits. */
int notify_manager(const char *state, const int *fds, size_t n);
