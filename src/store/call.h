// SPDX-License-Identifier: MIT
/*
 * The file calls that decide whether a checkpoint is complete or absent, each with a fault point of
 * its name, and the words for their failures. Nothing else in the store changes the disk.
 */
#pragma once

#include <sys/types.h>

#include "chunks/files.h"

/** mkdirat(2) with 0700, and opens it. Fault point store.mkdir. Returns the fd (owned) or -errno. */
int call_mkdir(int dir_fd, const char *name);

/** fsync(2) of a file. Fault point store.sync-file. */
int call_sync_file(int fd);

/** fsync(2) of a directory of a checkpoint. Fault point store.sync-dir. */
int call_sync_dir(int fd);

/** Writes and syncs the new file @name, 0600. Fault point store.write-manifest. */
int call_write_manifest(int dir_fd, const char *name, const void *text, size_t len_bytes);

/** Renames within @dir_fd, never over anything (-EEXIST). Fault point store.rename. */
int call_rename(int dir_fd, const char *from, const char *to);

/** fsync(2) of the store. Fault point store.sync-store. */
int call_sync_store(int fd);

/** Removes what call_rename() took out of sight. Fault point store.remove. */
int call_remove_tree(int dir_fd, const char *name);
