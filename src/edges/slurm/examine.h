// SPDX-License-Identifier: MIT
/* What of a site's Slurm is in brumate's way. See examine.c. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "edges/slurm/site.h"

/** Prints the findings about @config, as `scontrol show config` prints it. */
void site_examine(const char *config, const struct site *site);

/** The value of @name in such a text; "": it has none. Pure. */
void site_config_value(char *ret, size_t room, const char *config, const char *name);

/** "22.05.8" as Slurm's plugins have it, without the last part; 0: it is no version. Pure. */
uint32_t site_config_version(const char *text);
