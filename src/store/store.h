// SPDX-License-Identifier: MIT
/*
 * Checkpoints on disk. A store is a directory; a checkpoint is a directory in it that is complete or
 * absent: built as ".ID.partial", every file hashed and synced, the manifest written last, renamed to
 * ID, the store synced. Directories are 0700, files 0600. Nothing here follows a link, and paths from
 * a manifest are opened beneath their checkpoint only (openat2, RESOLVE_BENEATH | NO_SYMLINKS).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "image/manifest.h"

#define STORE_MANIFEST_NAME MANIFEST_FILE_NAME

/** A checkpoint being written. Owns its fds. */
struct store_writer {
	int store_fd; /* the store */
	int dir_fd;   /* ".ID.partial", locked (flock) while the writer lives */
	char id[MANIFEST_ID_BYTES];
	char *path; /* absolute path of the partial directory; of the checkpoint once committed */
	bool committed;
};
#define STORE_WRITER_EMPTY ((struct store_writer){ .store_fd = -1, .dir_fd = -1 })

/** The default store: $BRUMATE_STATE_DIR/checkpoints. Owned. */
char *store_default_dir(void);

/**
 * Starts a checkpoint in the store at @dir (created with its parents, 0700, if absent). Partial
 * checkpoints whose writer is dead are swept first. Refuses a store that everyone may write to,
 * unless it is sticky. Errors to act on: -EEXIST (@id is taken), -EINVAL (@id is no valid id),
 * -ENOSPC, -EDQUOT, -EROFS, -EACCES.
 */
int store_begin(struct store_writer *ret, const char *dir, const char *id,
		struct brumate_error *err);

/** Creates a directory below the checkpoint, 0700. Returns its fd (owned) or -errno. */
int store_mkdir(struct store_writer *w, const char *name, struct brumate_error *err);

/** Called in the caller's thread while files are hashed and synced; bytes done so far. <0 cancels with
 * that code. May be NULL. */
typedef int (*store_progress_fn)(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/**
 * Hashes and syncs every regular file below the checkpoint (in parallel, one thread a core, at most
 * 8), fills m->files, m->id and, where they are empty, m->created and m->brumate_version, writes the
 * manifest, renames, syncs. Special files and links are refused. On failure the partial directory is
 * still there for store_abort(), and the store as it was.
 */
int store_commit(struct store_writer *w, struct manifest *m, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/** Removes a checkpoint that was not committed and releases the writer. Accepts the empty value and
 * a committed writer (releases only). */
void store_abort(struct store_writer *w);
DEFINE_AUTO_FINI(struct store_writer, store_abort)

/** A committed checkpoint, opened. */
struct store_image {
	int dir_fd;
	char *path; /* absolute */
	struct manifest manifest;
};
#define STORE_IMAGE_EMPTY ((struct store_image){ .dir_fd = -1 })
void store_image_fini(struct store_image *i);
DEFINE_AUTO_FINI(struct store_image, store_image_fini)

/**
 * Opens the checkpoint @id of the store at @dir, or, where @id contains a '/', the directory @id
 * itself. Tried in this order: the id of a checkpoint, the id or name of a job (its latest
 * checkpoint), a unique prefix of an id. Refuses a directory that others than its owner may write to,
 * or that is owned by neither the caller nor root. Errors to act on: -ENOENT, -ENOTUNIQ, -EBADMSG, -EPROTONOSUPPORT, -EACCES.
 */
int store_open(struct store_image *ret, const char *dir, const char *id, struct brumate_error *err);

/** Compares every file with its size and digest, in parallel. -EBADMSG names the first bad file and
 * what is wrong (missing, truncated: A of B bytes, digest); an extra file is an error too. From here
 * until @i is closed nobody removes it (a shared lock on its directory). */
int store_verify(const struct store_image *i, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/** Calls @fn for every committed checkpoint of the store, oldest first; damaged ones with @i NULL and
 * the reason. A missing store is empty. */
int store_list(const char *dir,
	       void (*fn)(void *arg, const char *id, const struct store_image *i,
			  const struct brumate_error *why),
	       void *arg, struct brumate_error *err);

/** Removes a checkpoint, damaged or not, by its id or a unique prefix of it: renamed out of sight first,
 * so that half of one is never seen. Errors to act on: -ENOENT, -ENOTUNIQ, -EBUSY (being written or
 * restored), -EACCES. */
int store_remove(const char *dir, const char *id, struct brumate_error *err);

/** Removes partial checkpoints of @dir whose writer is dead, and what is left of removed ones. Returns
 * how many, or -errno. Where the file system has no locks (some network ones), none is removed. */
int store_sweep(const char *dir);

/** Free bytes of the file system that holds @dir (or its nearest existing parent). */
int store_free_bytes(const char *dir, uint64_t *ret, struct brumate_error *err);
