// SPDX-License-Identifier: MIT
/* The files of a checkpoint as they are on disk: found, and hashed by several threads. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "store/store.h"

struct tree_file {
	char *path; /* relative, owned */
	uint64_t len_bytes;
	struct digest digest;
};

struct tree {
	struct tree_file *files; /* sorted by path, without the manifest */
	size_t n_files, room;
	uint64_t total_bytes;
};
#define TREE_EMPTY ((struct tree){ 0 })
void tree_fini(struct tree *t);
DEFINE_AUTO_FINI(struct tree, tree_fini)

/** What to do to a directory of the tree, after all below it. */
typedef int (*tree_dir_fn)(int dir_fd);

/**
 * Finds every regular file beneath @dir_fd. Anything that is neither that nor a directory is
 * -EBADMSG. @dir (may be NULL) is called for every directory.
 */
int tree_scan(struct tree *ret, int dir_fd, tree_dir_fn dir, struct brumate_error *err);

/** What to do to an open file once it is hashed. */
typedef int (*tree_file_fn)(int fd, const struct tree_file *f, void *arg,
			    struct brumate_error *err);

/**
 * Hashes every file of @t, largest first, one thread a core and at most 8. @done (may be NULL) is
 * called in those threads; @progress in the caller's. The first failure by path is reported.
 */
int tree_hash(struct tree *t, int dir_fd, tree_file_fn done, void *done_arg,
	      store_progress_fn progress, void *progress_arg, struct brumate_error *err);
