// SPDX-License-Identifier: MIT
/* The command of this edge, and the option that it alone has. */
#pragma once

#include "cli/command.h"

enum {
	OPT_IDLE_AFTER = OPT__EDGE,
};

int verb_serve(const struct invocation *in, struct brumate_error *err);
