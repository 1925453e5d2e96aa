// SPDX-License-Identifier: MIT
/*
 * Host memory for the first copy of a container's device memory, made ready before its engine checkpoints it. For a
 * job its shim does that. Containers with brumate's library are found by their processes that use a GPU and have an
 * agent. These are not asked anything, and only the place of their agents' sockets is used: the broker learns from
 * the driver how much memory they have, and decides how much of that is made ready.
 */
#pragma once

/** Starts doing it in a thread of its own, if the configuration says so. A failure is logged. */
void container_prepare_start(void);
