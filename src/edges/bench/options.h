// SPDX-License-Identifier: MIT
/* The commands of this edge, and the options that they alone have. */
#pragma once

#include "cli/command.h"

enum {
	OPT_SIZE = OPT__EDGE,
	OPT_PIECES,
	OPT_ZERO,
	OPT_CHANGE,
	OPT_ROUNDS,
	OPT_TRACE,
	OPT_NO_CHECKPOINT,
	OPT_SERVE,
};

int verb_bench(const struct invocation *in, struct brumate_error *err);
