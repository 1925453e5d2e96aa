// SPDX-License-Identifier: MIT
/* The two halves of the service manager's protocol: a socket from it, news to it. */
#pragma once

/** The listening socket we were started with (owned), or -1 if there was none. */
int notify_listen_fd(void);

/** Sends @state ("READY=1") to the manager, if there is one. */
void notify_manager(const char *state);
