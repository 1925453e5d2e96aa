// SPDX-License-Identifier: MIT
/* Starting a process of ours that is to be nobody's child and to outlive whoever starts it. */
#pragma once

/**
 * Runs @child, which does not return, in a process that is not a child of ours. It may only make
 * async-signal-safe calls, because we may have threads. 0, -errno.
 */
int spawn_detached(void (*child)(const void *arg), const void *arg);
