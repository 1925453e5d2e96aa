// SPDX-License-Identifier: MIT
/* Whether memory is to be made so that network cards and the like can register it. */
#pragma once

#include <stdbool.h>

/** What /sys beneath @root says; true where it cannot be read. Keeps errno. */
bool gpudirect_possible(const char *root);

/** The same for this machine, looked at once per process. */
bool gpudirect_possible_here(void);
