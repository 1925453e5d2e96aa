// SPDX-License-Identifier: MIT
/*
 * Ctrl-C and SIGTERM as something that can be polled. Handlers rather than blocked signals: a mask
 * would be inherited by the shims, and so the jobs, that a command starts.
 */
#pragma once

#include <stdbool.h>

/**
 * From here on SIGINT, SIGTERM and SIGHUP make the returned fd (borrowed) readable, one byte each,
 * its number. With @second_exits, the second one ends the process at once. <0: -errno.
 */
int interrupt_watch(bool second_exits);

/** The number of a signal that came, or 0. */
int interrupt_take(void);
