// SPDX-License-Identifier: MIT
/*
 * Checkpoints in an object store: pushed, pulled, listed and removed. A checkpoint there is either complete or absent
 * for every reader (place.h describes the layout); the digests in its manifest verify everything. This folder knows
 * nothing of jobs or access rights.
 */
#pragma once

#include "edges/objects/config.h"
#include "edges/objects/place.h"
#include "store/source.h"
#include "store/store.h"

/**
 * Verifies the checkpoint @i and uploads what the place lacks; after an interruption, a later push continues. Errors
 * to act on: -EBADMSG (@i is damaged), -EEXIST (another one of that id is there), -EACCES, -ENOENT (no such bucket),
 * -ECANCELED.
 */
int remote_push(const struct remote_config *config, const struct remote_place *place,
		const struct store_image *i, struct source_sums *ret, store_progress_fn progress,
		void *arg, struct brumate_error *err);

/**
 * Downloads the checkpoint @word (an id, the name or id of a job, or the beginning of an id) of @place into the store
 * @dir. It is committed once every file is complete and verified, else absent. After an interruption, the downloaded
 * files are kept for the next pull. If the store has it already with the same manifest, that is a success. @authority
 * decides whether it is trusted, before any file is downloaded. Errors to act on: -ENOENT, -EBADMSG, -EEXIST,
 * -EACCES, -ENOSPC, -ECANCELED, those of authentic_check().
 */
int remote_pull(const struct remote_config *config, const struct remote_place *place,
		const char *word, const char *dir, const struct authority *authority,
		char ret_id[static MANIFEST_ID_BYTES], struct source_sums *ret,
		store_progress_fn progress, void *arg, struct brumate_error *err);

/** A checkpoint of a place that is used without a copy of its packs. */
struct remote_image;

/**
 * Finds the checkpoint @word, like remote_pull(); @config and @place are borrowed until it is closed. Errors to act
 * on: those of remote_pull().
 */
int remote_open(struct remote_image **ret, const struct remote_config *config,
		const struct remote_place *place, const char *word, store_progress_fn progress,
		void *arg, struct brumate_error *err);

/** Its manifest, borrowed; or a second one, owned. */
const struct manifest *remote_manifest(const struct remote_image *i);
int remote_copy_manifest(const struct remote_image *i, struct manifest *ret,
			 struct brumate_error *err);

/**
 * Downloads all but its packs, each file compared with its digest, into a directory below @dir (created if missing),
 * which is removed when @i is closed. Returns its fd (owned). To be called once. Errors to act on: those of
 * remote_pull().
 */
int remote_fetch(struct remote_image *i, const char *dir, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/** The source of its packs; valid until it is closed. */
const struct pack_source *remote_source(const struct remote_image *i);

/** Accepts NULL. */
void remote_close(struct remote_image *i);
DEFINE_AUTO(struct remote_image *, remote_close)

/** Removes what interrupted pulls left in the store @dir. Returns their number. */
int remote_sweep(const char *dir);

/** Receives one checkpoint of a place: its manifest, or NULL and why it cannot be used. */
typedef void (*remote_list_fn)(void *arg, const char *id, const struct manifest *m,
			       const struct brumate_error *why);

/** Calls @fn for every checkpoint of @place, in the order of their ids. <0 of @progress cancels. */
int remote_list(const struct remote_config *config, const struct remote_place *place,
		remote_list_fn fn, void *fn_arg, store_progress_fn progress, void *arg,
		struct brumate_error *err);

/**
 * Removes the checkpoint @id of @place, complete or not, and then the packs that no other one uses. The packs stay
 * while there is an incomplete or damaged checkpoint, which may need them. -ENOENT: there is none.
 */
int remote_remove(const struct remote_config *config, const struct remote_place *place,
		  const char *id, store_progress_fn progress, void *arg, struct brumate_error *err);
