// SPDX-License-Identifier: MIT
/* What other verbs do where a place in an object store is given instead of a checkpoint. */
#pragma once

#include <jansson.h>

#include "base/error.h"

/** Where @url is and how to get there, as "url" and "remote": from the caller's environment and files. */
int add_remote(json_t *p, const char *url, struct brumate_error *err);

/** Pulls the checkpoint @url into the store @dir (NULL: the default). @ret: its path there, owned. */
int pull_path(char **ret, const char *url, const char *dir, struct brumate_error *err);

/** The checkpoints below @url, as `Checkpoints` tells them. @ret owned. */
int list_remote(json_t **ret, const char *url, struct brumate_error *err);

/** Removes the checkpoint @url. */
int remove_remote(const char *url, struct brumate_error *err);
