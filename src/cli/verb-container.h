// SPDX-License-Identifier: MIT
/* What `checkpoint` and `restore` do with --container. */
#pragma once

#include "cli/command.h"

int container_checkpoint(const struct invocation *in, struct brumate_error *err);
int container_restore(const struct invocation *in, struct brumate_error *err);
