// SPDX-License-Identifier: MIT
/* The commands of this edge, and the options that they alone have. */
#pragma once

#include "cli/command.h"

enum {
	OPT_NAMESPACE = OPT__EDGE,
	OPT_SERVER,
	OPT_SERVER_NAME,
	OPT_TOKEN_FILE,
	OPT_CERT,
	OPT_KEY,
	OPT_CA_FILE,
	OPT_INTERVAL,
};

int verb_k8s(const struct invocation *in, struct brumate_error *err);
