// SPDX-License-Identifier: MIT
/* The commands of this edge, and the options that they alone have. */
#pragma once

#include "cli/command.h"

enum {
	OPT_TEXTFILE = OPT__EDGE,
	OPT_LISTEN,
	OPT_NAMES,
};

int verb_top(const struct invocation *in, struct brumate_error *err);
int verb_metrics(const struct invocation *in, struct brumate_error *err);
