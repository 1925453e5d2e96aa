// SPDX-License-Identifier: MIT
/*
 * Checkpoints that are elsewhere than in a directory of this machine. Each kind of such a
 * place is a folder of src/edges with a struct source_kind; nothing else knows how a place is reached. Programs link
 * the kinds that they are to have; a program without any knows directories alone.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "store/authentic.h"
#include "store/store.h"

struct source_kind;

/** A place, or one checkpoint of it, and how it is reached. All borrowed. */
struct source_place {
	const struct source_kind *kind;
	const char *url;
	json_t *remote; /* the result of its kind's address() */
};

/** A checkpoint of a place, used without a copy of its packs. The first member of its kind's own structure. */
struct image_source {
	const struct source_kind *kind;
	char *url;			 /* of the checkpoint, by its full id; owned */
	const struct manifest *manifest; /* borrowed from the source */
};

/** What an operation transferred. */
struct source_sums {
	uint64_t files, bytes;		   /* of the checkpoint */
	uint64_t moved_files, moved_bytes; /* of those, transferred over the network */
};

/** Receives one checkpoint of a place: its URL (owned by the caller), and its manifest, or NULL and why it cannot be used. */
typedef void (*source_list_fn)(void *arg, const char *id, const char *url, const struct manifest *m,
			       const struct brumate_error *why);

/** A kind of places. A <0 of a @progress cancels; a checkpoint is complete for every reader, or absent. */
struct source_kind {
	const char *scheme;  /* what stands before "://" in its URLs */
	const char *example; /* of a URL, for messages */
	const char *hint;    /* where such a URL is written another way; NULL: none */

	/** Address and credentials of the place @url, as the caller's user finds them (owned): a daemon uses none of its
	 * own for a client. Errors to act on: -EACCES (none are there), -EINVAL. */
	int (*address)(json_t **ret, const char *url, struct brumate_error *err);

	/** Finds the checkpoint @p->url; @p is borrowed until it is closed. @ret: owned. Errors to act on: -ENOENT,
	 * -ENOTUNIQ, -EBADMSG, -EACCES, -ECANCELED. */
	int (*open)(struct image_source **ret, const struct source_place *p,
		    store_progress_fn progress, void *arg, struct brumate_error *err);

	/** A second manifest of it, owned. */
	int (*copy_manifest)(const struct image_source *s, struct manifest *ret,
			     struct brumate_error *err);

	/** Brings all but its packs, each file compared with its digest, into a directory below @dir (created if
	 * missing), which is removed when @s is closed. Returns its fd (owned). To be called once. */
	int (*fetch)(struct image_source *s, const char *dir, store_progress_fn progress, void *arg,
		     struct brumate_error *err);

	/** The source of its packs; valid until it is closed. */
	const struct pack_source *(*packs)(const struct image_source *s);

	void (*close)(struct image_source *s);

	/** Verifies @i and puts it there; after an interruption, a later one continues. @ret_url: of the checkpoint,
	 * owned. Errors to act on: -EBADMSG (@i is damaged), -EEXIST (another one of that id is there), -EACCES,
	 * -ENOENT (no such place), -ECANCELED. */
	int (*push)(const struct source_place *p, const struct store_image *i, char **ret_url,
		    struct source_sums *ret, store_progress_fn progress, void *arg,
		    struct brumate_error *err);

	/** Brings the checkpoint @p->url into the store @dir. @authority decides whether it is trusted, before any file is
	 * transferred. Files of an interrupted one are kept for the next. If the store has it already, that is a success.
	 * @ret_url: owned. Errors to act on: those of open(), -EEXIST, -ENOSPC, those of authentic_check(). */
	int (*pull)(const struct source_place *p, const char *dir,
		    const struct authority *authority, char ret_id[static MANIFEST_ID_BYTES],
		    char **ret_url, struct source_sums *ret, store_progress_fn progress, void *arg,
		    struct brumate_error *err);

	/** Calls @fn for every checkpoint of the place, in the order of their ids. */
	int (*list)(const struct source_place *p, source_list_fn fn, void *fn_arg,
		    store_progress_fn progress, void *arg, struct brumate_error *err);

	/** Removes the checkpoint @p->url, complete or not, and what only it used. -ENOENT: there is none. */
	int (*remove)(const struct source_place *p, store_progress_fn progress, void *arg,
		      struct brumate_error *err);

	/** Removes what interrupted pulls left in the store @dir. Returns their number. */
	int (*sweep)(const char *dir);
};

/** The kinds that this program has, made by meson out of its option "edges"; ends with NULL. */
extern const struct source_kind *const source_kinds[] __attribute__((weak));

/** Whether @word is a URL rather than a file or an id. */
bool source_is_url(const char *word);

/** The kind of @url, by its scheme. -EINVAL: no kind of ours, with what was expected. */
int source_find_kind(const struct source_kind **ret, const char *url, struct brumate_error *err);

/** Closes @s; accepts NULL. */
void source_close(struct image_source *s);
DEFINE_AUTO(struct image_source *, source_close)

/** sweep() of all kinds. */
int source_sweep(const char *dir);
