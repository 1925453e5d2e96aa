// SPDX-License-Identifier: MIT
/*
 * Files of brumate's own that the processes of a job hold: its root's program, and our library in the others. CRIU
 * opens them again at a restore, and refuses others in their place. So that a checkpoint outlives the brumate that
 * made it, it holds copies of them.
 */
#pragma once

#include "engine/op.h"

/** Puts copies of those files into op->checkpoint.writer. One that is not there any more is not ours to keep: CRIU
 * saves what has no name. Errors as of writing an image. */
int programs_save(struct op *op, struct brumate_error *err);

/**
 * Adds to @inherits (owned, grown; @n of them) the copies of those files of op->restore.image that are not here as they
 * were. A copy is put below the state directory, where it stays: the job holds it from then on.
 */
int programs_for_restore(struct op *op, struct criu_inherit **inherits, size_t *n,
			 struct brumate_error *err);
