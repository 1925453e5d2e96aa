// SPDX-License-Identifier: MIT
/*
 * The file protocol of images that are made to be saved: the variable SNAPSHOT_CONTROL_DIR names a directory in the
 * container. Its program writes ready-for-snapshot there; the saver of the container writes snapshot-complete, and
 * its restorer restore-complete. The container is untrusted: no symbolic link is followed, nothing outside of it is
 * accessed, and files are written with the permissions of its first process.
 */
#pragma once

#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"

#define SNAPSHOT_COMPLETE "snapshot-complete"
#define RESTORE_COMPLETE  "restore-complete"

struct snapshot_control {
	struct proc_id init;
	int dir_fd;
};
#define SNAPSHOT_CONTROL_NONE ((struct snapshot_control){ .dir_fd = -1 })
void snapshot_control_fini(struct snapshot_control *c);
DEFINE_AUTO_FINI(struct snapshot_control, snapshot_control_fini)

/** Opens the directory of the container whose first process is @init. 1; 0: its environment does not name one. Errors
 * to act on: -ESRCH, -ENOENT, -ELOOP (a link), -EBADMSG. */
int snapshot_control_open(struct snapshot_control *ret, struct proc_id init,
			  struct brumate_error *err);

/** Waits until the program reports that it is ready. -ETIMEDOUT; -ESRCH: the container has ended; -ECANCELED: a
 * signal. */
int snapshot_control_wait(const struct snapshot_control *c, uint64_t deadline_ns,
			  struct brumate_error *err);

/** Writes SNAPSHOT_COMPLETE or RESTORE_COMPLETE. Existing ones stay. */
int snapshot_control_tell(const struct snapshot_control *c, const char *name,
			  struct brumate_error *err);
