// SPDX-License-Identifier: MIT
/*
 * A checkpoint that is restored from an object store, without a copy of it here: CRIU's images and the other
 * files are fetched into the job's directory for as long as the restore takes, the chunks of memory come
 * straight from there into host copies and processes. How to get there and as whom is known to the operation
 * alone, and forgotten with it.
 */
#pragma once

#include <jansson.h>

#include "engine/op.h"

/** Where its files are meanwhile, in the job's directory. */
#define FETCHED_DIR "fetched"

/**
 * Finds the checkpoint @url ("s3://BUCKET/PREFIX/ID"), which must be of op->job, by @remote (type Remote of
 * io.brumate). Fills op->image so far as is known: its manifest, and @url as its path.
 */
int fetched_open(struct op *op, const char *url, json_t *remote, struct brumate_error *err);

/** Whether op->image is such a one. */
bool fetched_is(const struct op *op);

/** Gets its files, each compared with its digest. -EBADMSG, -ENOSPC, those of the network. */
int fetched_files(struct op *op, store_progress_fn progress, struct brumate_error *err);

/** Lets go of it, and of its files; before that of op->image. */
void fetched_close(struct op *op);

/** Removes what a dead shim left of one. */
void fetched_sweep(const struct job *job);
