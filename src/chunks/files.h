// SPDX-License-Identifier: MIT
/*
 * Files of a checkpoint: opens what a manifest names, lists directories, syncs, and words errors.
 *
 * What a manifest names is opened beneath the directory of its checkpoint, never through a link, and is never a
 * device or a pipe that would block or act. This uses openat2(2), whose presence `brumate doctor` checks.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/error.h"

/**
 * Opens the regular file @path beneath @dir_fd for reading, @ret_st: its status (may be NULL). Returns an owned fd;
 * -EXDEV or -ELOOP for a path that leads outside or through a link; -EMEDIUMTYPE if it is not a regular file; -errno.
 */
int files_open(int dir_fd, const char *path, struct stat *ret_st);

/** Refuses (-EACCES) a file or directory that users other than its owner could have written, or that belongs to
 * neither the caller nor root: restoring a checkpoint runs it. */
int files_check_owner(const struct stat *st, struct brumate_error *err);

/** Whether this error is one of the disk, the network or this machine, and says nothing of what is there. */
bool files_cannot_tell(int code);

/** Names of directories. */
struct dir_names {
	char **ids; /* sorted */
	size_t n;
};
#define DIR_NAMES_EMPTY ((struct dir_names){ 0 })
void dir_names_fini(struct dir_names *n);
DEFINE_AUTO_FINI(struct dir_names, dir_names_fini)

/** Lists the directories in @dir_fd whose names @wanted accepts, and what cannot be looked at. 0 or -errno. */
int dir_names_list(struct dir_names *ret, int dir_fd, bool (*wanted)(const char *name));

/** fsync(2) with the fault point @point. */
int files_sync(int fd, const char *point);

/** Starts @err with "@path: @doing: cause" and what to do about it. Returns -@code. */
int files_fail(struct brumate_error *err, int code, const char *path, const char *doing);
