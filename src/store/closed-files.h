// SPDX-License-Identifier: MIT
/* Files of a checkpoint that are hashed as soon as who writes them closes them, while others are still written. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "store/file-tree.h"

/** A file as it was when it was hashed. */
struct closed_file {
	char *path; /* relative, owned */
	uint64_t len_bytes;
	ino_t inode;
	struct timespec changed;
	struct digest digest;
	bool is_hashed;
	size_t nth; /* of all closes */
};

struct closed_files;

/**
 * Begins with files that are closed from now on in directory @name below @dir_fd, which is borrowed. A thread hashes them one by one,
 * and calls @done for each. -errno, as where the kernel watches no more directories.
 */
int closed_files_begin(struct closed_files **ret, int dir_fd, const char *name, disk_file_fn done,
		       void *done_arg);

/** Ends that. Files that were closed again since they were hashed, or while they were, are not known any more. Returns the first
 * failure of @done. */
int closed_files_end(struct closed_files *c, struct brumate_error *err);

/** Finds the file @path that is known, once they have ended. NULL: it is not. */
const struct closed_file *closed_files_find(const struct closed_files *c, const char *path);

/** Ends, too. Accepts NULL. */
void closed_files_free(struct closed_files *c);
DEFINE_AUTO(struct closed_files *, closed_files_free)
