// SPDX-License-Identifier: MIT
/* What brumate-container can be run as: a command of `brumate`, or the helper of CRIU's plugin. */
#pragma once

#include "cli/command.h"

/** `brumate checkpoint --container` and `restore --container`: by the engine of the container. */
int checkpoint_by_engine(const struct invocation *in, struct brumate_error *err);
int restore_by_engine(const struct invocation *in, struct brumate_error *err);
int verb_cdi(const struct invocation *in, struct brumate_error *err);

/** Whether the arguments are those of the helper. */
bool helper_is_meant(int argc, char **argv);
/** main() of the helper. */
int helper_main(int argc, char **argv);
