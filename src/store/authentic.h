// SPDX-License-Identifier: MIT
/*
 * Whether a checkpoint is from whom it should be (docs/image-format.md, "Authentic"). A MAC by the key of the
 * store, or a signature, of the manifest; all else hangs from the digests in it. Reads no data.
 */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "chunks/key.h"
#include "image/manifest.h"

struct signing_key;
struct trusted_keys;
struct store_image;

/** By what checkpoints are believed. */
struct authority {
	bool has_key;
	struct store_key key;	      /* with has_key: MACs must be by it */
	struct trusted_keys *trusted; /* owned; NULL: no signature is asked for */
	bool lenient; /* those that do not say from whom they are pass; those that lie never do */
};
#define AUTHORITY_EMPTY ((struct authority){ 0 })
void authority_fini(struct authority *a);
DEFINE_AUTO_FINI(struct authority, authority_fini)

/** Makes the MAC of @m if @key is not NULL, and its signature if @signing is not. 0 or -ENOMEM. */
int authentic_make(struct manifest *m, const struct store_key *key,
		   const struct signing_key *signing);

/**
 * Decides whether @m, decoded, is believed by @a. Errors to act on: -EKEYREJECTED (it does not say from whom it is,
 * or names somebody who does not count: a lenient @a passes it), -EBADMSG (its MAC or signature is forged).
 */
int authentic_check(const struct manifest *m, const struct authority *a, struct brumate_error *err);

/** The same for a checkpoint that is open; its directory must have its id as its name, too, for whoever asks for
 * the newest of a job goes by names. */
int authentic_check_image(const struct store_image *i, const struct authority *a,
			  struct brumate_error *err);
