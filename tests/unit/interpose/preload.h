// SPDX-License-Identifier: MIT
/* How tests of the library under test start: again as themselves, with it loaded before them. */
#pragma once

#include "hooks.h"

/** Runs the program anew with the library loaded and the driver in $TEST_DRIVER_DIR, unless it runs
 * so already; returns the hooks. */
const struct hooks *preload(char **argv);

/** Starts the program anew, @mode as its argument, @variable=@value in its environment; it must
 * end well. */
void run_mode(const char *mode, const char *variable, const char *value);
