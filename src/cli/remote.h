// SPDX-License-Identifier: MIT
/* What other verbs do where a place in an object store is given instead of a checkpoint. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "cli/command.h"

/** Where @url is and how to get there, as "url" and "remote": from the caller's environment and files. */
int add_remote(json_t *p, const char *url, struct brumate_error *err);

/** Pulls the checkpoint @url as the options of @in say. @ret: its path here, owned. */
int pull_path(char **ret, const struct invocation *in, const char *url, struct brumate_error *err);

/** The checkpoints below @url, as `Checkpoints` tells them. @ret owned. */
int list_remote(json_t **ret, const char *url, struct brumate_error *err);

/** Removes the checkpoint @url. */
int remove_remote(const char *url, struct brumate_error *err);
