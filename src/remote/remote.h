// SPDX-License-Identifier: MIT
/*
 * Checkpoints in an object store: pushed, pulled, listed and removed. A checkpoint there is complete or
 * absent for whoever looks (place.h says where what lies); all of it is proven by the digests of its
 * manifest. Nothing here knows of jobs or of who may do what.
 */
#pragma once

#include "remote/config.h"
#include "remote/place.h"
#include "store/store.h"

/** What an operation moved. */
struct remote_sums {
	uint64_t files, bytes;		   /* of the checkpoint */
	uint64_t moved_files, moved_bytes; /* of those, that went over the network */
};

/**
 * Verifies the checkpoint @i and puts what is not there yet; interrupted, a later push goes on where it
 * ended. Errors to act on: -EBADMSG (@i is damaged), -EEXIST (another one of that id is there), -EACCES,
 * -ENOENT (no such bucket), -ECANCELED.
 */
int remote_push(const struct remote_config *config, const struct remote_place *place,
		const struct store_image *i, struct remote_sums *ret, store_progress_fn progress,
		void *arg, struct brumate_error *err);

/**
 * Gets the checkpoint @word (an id, the name or id of a job, or the beginning of an id) of @place into
 * the store @dir: committed once every file is there and right, else not there. What came before an
 * interruption is kept beside it for the next pull. One that is there already with the same manifest is
 * a success. @authority says whether it is believed, before any file comes. Errors to act on: -ENOENT, -EBADMSG,
 * -EEXIST, -EACCES, -ENOSPC, -ECANCELED, those of authentic_check().
 */
int remote_pull(const struct remote_config *config, const struct remote_place *place,
		const char *word, const char *dir, const struct authority *authority,
		char ret_id[static MANIFEST_ID_BYTES], struct remote_sums *ret,
		store_progress_fn progress, void *arg, struct brumate_error *err);

/** A checkpoint of a place that is used without a copy of its packs. */
struct remote_image;

/**
 * Finds the checkpoint @word, as remote_pull(); @config and @place are borrowed until it is closed. Errors to
 * act on: as those of remote_pull().
 */
int remote_open(struct remote_image **ret, const struct remote_config *config,
		const struct remote_place *place, const char *word, store_progress_fn progress,
		void *arg, struct brumate_error *err);

/** Its manifest: borrowed, or another one, owned. */
const struct manifest *remote_manifest(const struct remote_image *i);
int remote_copy_manifest(const struct remote_image *i, struct manifest *ret,
			 struct brumate_error *err);

/**
 * Gets all but its packs, each file compared with its digest, into a directory below @dir (made where it is
 * missing), which is removed when @i is closed. Returns its fd (owned). Once. Errors to act on: as those of
 * remote_pull().
 */
int remote_fetch(struct remote_image *i, const char *dir, store_progress_fn progress, void *arg,
		 struct brumate_error *err);

/** How its packs are read; good until it is closed. */
const struct pack_source *remote_source(const struct remote_image *i);

/** Accepts NULL. */
void remote_close(struct remote_image *i);
DEFINE_AUTO(struct remote_image *, remote_close)

/** Removes what interrupted pulls left in the store @dir. Returns how many. */
int remote_sweep(const char *dir);

/** One checkpoint of a place: its manifest, or NULL and why it cannot be used. */
typedef void (*remote_list_fn)(void *arg, const char *id, const struct manifest *m,
			       const struct brumate_error *why);

/** Calls @fn for every checkpoint of @place, in the order of their ids. <0 of @progress cancels. */
int remote_list(const struct remote_config *config, const struct remote_place *place,
		remote_list_fn fn, void *fn_arg, store_progress_fn progress, void *arg,
		struct brumate_error *err);

/**
 * Removes the checkpoint @id of @place, complete or not, and then the packs that no other one uses. They
 * stay while there is an incomplete or damaged one, which may need them. -ENOENT: there is nothing.
 */
int remote_remove(const struct remote_config *config, const struct remote_place *place,
		  const char *id, store_progress_fn progress, void *arg, struct brumate_error *err);
