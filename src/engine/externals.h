// SPDX-License-Identifier: MIT
/* Standard streams of a job that lead outside its tree, and what becomes of them at a restore. */
#pragma once

#include "engine/op.h"

/**
 * Finds pipes and terminals among fds 0, 1 and 2 of the tree that lead outside it, and records them in
 * the manifest: what was written to one goes to the job's log after a restore (to nowhere where the
 * job has none), what was read from one is empty. Also sets manifest.shell_job.
 */
int externals_find(struct op *op, struct brumate_error *err);

/** Keys for criu_options.externals: terminals must be announced at the dump. Owned, NULL-terminated. */
char **externals_for_dump(const struct manifest *m);
void externals_free(char **keys);

/**
 * The fds to give in their place. Owned: externals_close(). They are opened in the mount namespace of
 * @op->job.init where there is one: CRIU cannot dump an fd whose mount its tasks do not see.
 */
int externals_for_restore(struct op *op, struct criu_inherit **ret, size_t *ret_n,
			  struct brumate_error *err);
void externals_close(struct criu_inherit *inherits, size_t n);
