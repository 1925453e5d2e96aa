// SPDX-License-Identifier: MIT
/* The commands of this edge, and the options that they alone have. */
#pragma once

#include "cli/command.h"

enum {
	OPT_VIA = OPT__EDGE,
};

int verb_set(const struct invocation *in, struct brumate_error *err);
