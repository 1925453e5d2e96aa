// SPDX-License-Identifier: MIT
/*
 * What a job has outside of its tree, and what replaces it at a restore: standard streams (externals.c), addresses
 * (addresses.c), and files of brumate's own (programs.c).
 */
#pragma once

#include "engine/op.h"

/* ---- standard streams that lead outside the tree ---- */

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
 * @op->target.init where there is one: CRIU cannot dump an fd whose mount its tasks do not see.
 */
int externals_for_restore(struct op *op, struct criu_inherit **ret, size_t *ret_n,
			  struct brumate_error *err);
void externals_close(struct criu_inherit *inherits, size_t n);

/** Adds one to @inherits (owned, grown; @n of them). Takes @fd, or is the error that it is. */
int externals_give(struct criu_inherit **inherits, size_t *n, const char *key, int fd);

/* ---- addresses that a restored job is at ---- */

/**
 * Refuses (-EADDRINUSE) to restore from CRIU's images, which are open, where another process has an address of the job
 * already; --force restores anyway. CRIU would fail late, without a name; or, where the address is a path, take it away
 * from the process that listens there. A port that only earlier connections keep busy is waited for. -ETIMEDOUT,
 * -ECANCELED.
 */
int addresses_check(struct op *op, struct brumate_error *err);

/*
 * ---- files of brumate's own ----
 *
 * Processes of a job hold its root's program, and our library in the others. CRIU opens them again at a restore, and refuses
 * others in their place. So that a checkpoint outlives the brumate that made it, it holds copies of them.
 */

/** Puts copies of those files into op->checkpoint.writer. One that is not there any more is not ours to keep: CRIU
 * saves what has no name. Errors as of writing an image. */
int programs_save(struct op *op, struct brumate_error *err);

/** Whether the checkpoint has a copy of the file at @path. */
bool programs_are_kept(const struct manifest *m, const char *path);

/**
 * Removes those below the state directory that no process uses: each checkpoint of a job that uses one holds it. Of
 * other users' processes only root knows. Returns how many are gone.
 */
int programs_sweep(void);

/**
 * Adds to @inherits (owned, grown; @n of them) the copies of those files of op->restore.image that are not here as they
 * were. A copy is put below the state directory, where it stays while it is used: the job holds it from then on.
 */
int programs_for_restore(struct op *op, struct criu_inherit **inherits, size_t *n,
			 struct brumate_error *err);
