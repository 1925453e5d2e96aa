// SPDX-License-Identifier: MIT
/* The files of a checkpoint as they are on disk: found, read ahead, hashed by several threads, and compared with a manifest. */
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
	int failure; /* with go_on: -errno of what could not be read; -EBADMSG is not a regular file */
};

struct file_tree {
	struct disk_file *files; /* sorted by path, without the manifest */
	size_t n_files;
	uint64_t total_bytes;
	bool go_on; /* what fails is noted in its file, and the others are looked at all the same */
	bool will_sync; /* the files will be synced: start to write them out while they are hashed */
};
#define FILE_TREE_EMPTY ((struct file_tree){ 0 })
void file_tree_fini(struct file_tree *t);
DEFINE_AUTO_FINI(struct file_tree, file_tree_fini)

/** Does something to a directory, after all that is below it. */
typedef int (*file_tree_dir_fn)(int dir_fd);

/**
 * Finds every regular file beneath @dir_fd. Anything that is neither that nor a directory is
 * -EBADMSG. @dir (may be NULL) is called for every directory.
 */
int file_tree_scan(struct file_tree *ret, int dir_fd, file_tree_dir_fn dir,
		   struct brumate_error *err);

/** file_tree_scan() that lists what cannot be read or is not a file too, with its failure; sets go_on. */
int file_tree_scan_all(struct file_tree *ret, int dir_fd, struct brumate_error *err);

/** Does something to an open file once it is hashed. */
typedef int (*disk_file_fn)(int fd, const struct disk_file *f, void *arg,
			    struct brumate_error *err);

/**
 * Hashes every file of @t that is not yet, largest first, one thread a core and at most 8. @done (may be NULL) is
 * called in those threads; @progress in the caller's. The first failure by path is reported.
 */
int file_tree_hash(struct file_tree *t, int dir_fd, disk_file_fn done, void *done_arg,
		   store_progress_fn progress, void *progress_arg, struct brumate_error *err);

/** Moves the packs of @m that are in @t to @ret. 0 or -ENOMEM. */
int file_tree_split(struct file_tree *ret, struct file_tree *t, const struct manifest *m);

/** Refuses the first difference of names or sizes between the manifest and the files and packs. */
int file_tree_compare(const struct manifest *m, const struct file_tree *files,
		      const struct file_tree *packs, struct brumate_error *err);

/*
 * ---- reading ahead ----
 *
 * Reading one file ahead of whoever works on its bytes: a thread fills buffers while its owner hashes
 * or writes the ones before. For large files, where reading and hashing after each other would add up.
 */

enum { AHEAD_BYTES = 2 << 20, AHEAD_BUFFERS = 4, AHEAD_WORTH_BYTES = 4 * AHEAD_BYTES };

struct ahead;

/** Starts to read @fd (borrowed) from its beginning, by pread(2). 0, -ENOMEM, -EAGAIN (no thread). */
int ahead_start(struct ahead **ret, int fd);

/**
 * The next bytes of the file in @ret, borrowed until the next call: how many, 0 at its end, -errno of
 * the read. One thread at a time.
 */
ssize_t ahead_next(struct ahead *a, const void **ret);

/** Stops reading and frees. Accepts NULL. */
void ahead_free(struct ahead *a);
DEFINE_AUTO(struct ahead *, ahead_free)
