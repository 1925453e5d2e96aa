// SPDX-License-Identifier: MIT
/* The row of `brumate cdi`: linked by `brumate` too, for help and completion. */

#include "cli/options.h"

static const struct option_spec cdi_options[] = { END };

const struct command cdi_command = {
	.name = "cdi",
	.operands = "",
	.summary = "print the CDI device that gives containers brumate's library",
	.options = cdi_options,
	.program = "brumate-container",
};
