// SPDX-License-Identifier: MIT
/*
 * What must be there, as it was, for a checkpoint to be restored: files that CRIU opens by their paths and does not make itself, and
 * the directory in which the agents listen. CRIU would say it in the middle, one at a time.
 */
#pragma once

#include "criu/images.h"
#include "engine/op.h"

/** Lists it: an array (@ret, owned) of Need of io.brumate. Looks with the rights of the job's user. Strings are escaped as
 * base/escape.h does. Errors as criu_files_read(). */
int needs_find(json_t **ret, const struct manifest *m, criu_image_read_fn read, void *arg,
	       struct brumate_error *err);

/** Refuses the restore of @op if anything is wrong with any of it, and names what; @images_dir_fd (borrowed): CRIU's
 * images, not encrypted. Checks nothing with --force. */
int needs_check(struct op *op, int images_dir_fd, struct brumate_error *err);
