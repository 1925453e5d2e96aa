// SPDX-License-Identifier: MIT
/* The host memory of a checkpoint into the processes that CRIU restored without it. */
#pragma once

#include "image/manifest.h"
#include "process/process.h"
#include "chunks/chunks.h"

/**
 * Fills all host regions of @m (that of @reader) in the stopped processes of @tree. @cancelled is asked
 * now and then. Errors to act on: -EBADMSG (damaged), -ESRCH, -ECANCELED.
 */
int host_fill(struct chunks_reader *reader, const struct manifest *m, const struct proc_tree *tree,
	      bool (*cancelled)(void *arg), void *arg, struct brumate_error *err);
