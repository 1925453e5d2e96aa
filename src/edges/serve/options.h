// SPDX-License-Identifier: MIT
/* The commands of this edge, and the options that they alone have. */
#pragma once

#include "cli/command.h"

enum {
	OPT_IDLE_AFTER = OPT__EDGE,
	OPT_SLICE,
	OPT_SOCKET,
};

int verb_serve(const struct invocation *in, struct brumate_error *err);
int verb_http(const struct invocation *in, struct brumate_error *err);
int verb_share(const struct invocation *in, struct brumate_error *err);
