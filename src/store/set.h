// SPDX-License-Identifier: MIT
/*
 * Sets: checkpoints of several jobs, on several machines that share the store, which count only together. The record of a
 * complete set is the file ".sets/NAME" of the store; one that is being decided is ".sets/.NAME.NONCE.save" (or
 * ".restore"), locked (flock) while its coordinator lives. To commit is to rename that file; to give it up is to unlink it.
 * The store lets one of the two happen, once, so all members come to the same end if any of them dies, and no process has
 * to be asked. After a restore ".sets/.NAME.NONCE.restored" is the file that was renamed.
 *
 * A checkpoint whose manifest names a set is none without the record: `prune` removes it.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "image/manifest.h"

enum { SET_RECORD_BYTES_MAX = 16 << 20, SET_PATH_BYTES = 1024, SET_LINES_BYTES = 32768 };

/** What a packet begins with in which one who takes part sends lines about its connections. */
#define SET_CONNECTIONS "connections\n"
#define SET_DRAINS	"drained\n"

enum set_kind { SET_SAVE, SET_RESTORE };

/** A set that is being decided, held by its coordinator. */
struct set_writer {
	char path[SET_PATH_BYTES]; /* what is given to those who take part */
	int fd;
};
#define SET_WRITER_EMPTY ((struct set_writer){ .fd = -1 })

/** Begins the decision about the set @name of the store at @dir (absolute; made where it is absent). Errors to act on: -EEXIST (there is
 * such a set), -EINVAL (of @name), -ENOSPC, -EACCES. */
int set_begin(struct set_writer *ret, const char *dir, const char *name, enum set_kind kind,
	      struct brumate_error *err);

/** Commits, with @record (borrowed, an object) as the content. Errors to act on: -ECANCELED (a member has given it up). */
int set_commit(struct set_writer *w, json_t *record, struct brumate_error *err);

/** Releases it; a set that was not committed is given up. */
void set_end(struct set_writer *w);
DEFINE_AUTO_FINI(struct set_writer, set_end)

/** After a restore: nobody needs to know any more. */
void set_forget(const struct set_writer *w);

/** Gives up what @path (set_writer.path) decides. 1: that is so, now or since before; 0: it is committed; -errno: not known, so ask again. */
int set_give_up(const char *path);

/** The name of the set in such a path; false if it is none, as one from elsewhere may be. */
bool set_name_of(char ret[static MANIFEST_ID_BYTES], const char *path);

/** Reads the record of a complete set (owned). Errors to act on: -ENOENT, -EBADMSG. */
int set_read(json_t **ret, const char *dir, const char *name, struct brumate_error *err);

/** The connections that the member with @checkpoint of a set that is being restored (@path: set_writer.path) finds closed, as sockets_close()
 * takes them (owned); NULL: none. Errors to act on: as set_read(). */
int set_closes(char **ret, const char *path, const char *checkpoint, struct brumate_error *err);

/** Calls @fn with the name of each complete set. A missing store has none. */
int set_list(const char *dir, void (*fn)(void *arg, const char *name), void *arg,
	     struct brumate_error *err);

/** Removes the record; its checkpoints are then garbage. -ENOENT. */
int set_remove(const char *dir, const char *name, struct brumate_error *err);

/** Whether the checkpoint @id of the set @name counts: 1, also while that is being decided; 0: it never will; -errno: not known. Gives up
 * what a dead coordinator left. */
int set_counts(const char *dir, const char *name, const char *id);
