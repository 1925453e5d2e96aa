// SPDX-License-Identifier: MIT
/* The files of a checkpoint on disk: found, hashed by several threads, and compared with a manifest. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "store/store.h"

struct disk_file {
	char *path; /* relative, owned */
	uint64_t len_bytes;
	struct digest digest;
	bool is_hashed; /* already */
	int failure; /* with go_on: -errno of a failure to read it; -EBADMSG: not a regular file */
};

struct file_tree {
	struct disk_file *files; /* sorted by path, without the manifest */
	size_t n_files;
	uint64_t total_bytes;
	bool go_on;	/* note failures in their files, and continue with the others */
	bool will_sync; /* the files will be synced: start writing them out while they are hashed */
};
#define FILE_TREE_EMPTY ((struct file_tree){ 0 })
void file_tree_fini(struct file_tree *t);
DEFINE_AUTO_FINI(struct file_tree, file_tree_fini)

/** Called for a directory, after everything below it. */
typedef int (*file_tree_dir_fn)(int dir_fd);

/**
 * Finds every regular file beneath @dir_fd. Anything that is neither that nor a directory is
 * -EBADMSG. @dir (may be NULL) is called for every directory.
 */
int file_tree_scan(struct file_tree *ret, int dir_fd, file_tree_dir_fn dir,
		   struct brumate_error *err);

/** Like file_tree_scan(), but also lists what cannot be read or is not a file, with its failure; sets go_on. */
int file_tree_scan_all(struct file_tree *ret, int dir_fd, struct brumate_error *err);

/** Called for an open file after it was hashed. */
typedef int (*disk_file_fn)(int fd, const struct disk_file *f, void *arg,
			    struct brumate_error *err);

/**
 * Hashes every file of @t that is not hashed yet, largest first, with one thread for each core, at most 8, or with 8 where they are synced. @done (may
 * be NULL) is called in those threads; @progress in the caller's. Returns the failure of the first file by path.
 */
int file_tree_hash(struct file_tree *t, int dir_fd, disk_file_fn done, void *done_arg,
		   store_progress_fn progress, void *progress_arg, struct brumate_error *err);

/** Moves the packs of @m that are in @t to @ret. 0 or -ENOMEM. */
int file_tree_split(struct file_tree *ret, struct file_tree *t, const struct manifest *m);

/** Refuses the first difference of names or sizes between the manifest and the files and packs. */
int file_tree_compare(const struct manifest *m, const struct file_tree *files,
		      const struct file_tree *packs, struct brumate_error *err);
