// SPDX-License-Identifier: MIT
/*
 * Names in a store, and loading one of its checkpoints, for the other files of this layer.
 *
 * "ID" is a checkpoint, ".ID.partial" one that is being written, ".ID.removed-PID-N" one that is being removed, and
 * ".ID.pinned" marks "ID" as pinned. Everything else in the directory is not ours and never touched.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "chunks/files.h"
#include "store/store.h"

/** Opens the store itself. Returns an owned fd, @ret_path its real path (owned, may be NULL). */
int names_open_store(const char *dir, char **ret_path, struct brumate_error *err);

/** Length of the ID in one of our hidden names, without the leading dot; 0 for any other name. */
size_t names_leftover_id_len(const char *name);

/** Whether the name is one of our hidden names. */
bool names_is_leftover(const char *name);

/** Starts @err for a checkpoint that is not in the store. Returns -ENOENT. */
int names_fail_unknown(struct brumate_error *err, const char *dir, const char *id);

/** Loads the checkpoint @id of the store @store_fd, whose path is @store. Takes no lock. */
int image_load(struct store_image *ret, int store_fd, const char *store, const char *id,
	       struct brumate_error *err);

/**
 * Prevents store_remove() of @i until it is closed, by a shared lock of its directory; without effect on file systems
 * without locks. -EBUSY: it is being removed at present.
 */
int image_hold(const struct store_image *i);

/** Length of the ID in the name of a mark of a pinned checkpoint; 0 for any other name. */
size_t pin_mark_id_len(const char *name);

/** Refuses (-EBUSY) a checkpoint that is pinned, or for which that is unknown. */
int pin_refuse(int store_fd, const char *id, struct brumate_error *err);

/* For how long the lock of a store is waited for, in all: who may list it can hold that for ever. */
enum { STORE_LOCK_MS = 2000 };

/** Removes the mark of a checkpoint that does not exist any more. 0 or -errno; -EBUSY: it exists, or the store is locked until
 * @deadline_ns. */
int pin_sweep(int store_fd, const char *mark, uint64_t deadline_ns);

/* ---- the file calls that decide whether a checkpoint is complete or absent, each with a fault point of its name (writer.c) ---- */

/** mkdirat(2) with 0700, and opens it. Fault point store.mkdir. Returns the fd (owned) or -errno. */
int call_mkdir(int dir_fd, const char *name);

/** fsync(2) of the store. Fault point store.sync-store. */
int call_sync_store(int fd);

/** Renames within @dir_fd, never over anything (-EEXIST). Fault point store.rename. */
int call_rename(int dir_fd, const char *from, const char *to);

/** Removes what call_rename() has hidden. Fault point store.remove. */
int call_remove_tree(int dir_fd, const char *name);
