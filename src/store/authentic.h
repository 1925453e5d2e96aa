// SPDX-License-Identifier: MIT
/*
 * Whether a checkpoint is from whom it should be (docs/image-format.md, "Authentic"). A MAC by the key of the
 * store, or a signature, of the manifest; all else hangs from the digests in it. Reads no data.
 *
 * Signatures are by ed25519 (RFC 8032), through libcrypto. Keys are PEM files as `openssl genpkey -algorithm ed25519` and
 * `openssl pkey -pubout` write them. A key goes by the SHA-256 of its 32 public bytes.
 */
#pragma once

#include <stdbool.h>

#include "base/cleanup.h"
#include "base/digest.h"
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

/** Reads the private key in the file at @path (owned). Refuses one that others than its owner, who must be the
 * caller or root, may read. -ENOKEY (no such file), -EACCES, -EINVAL (no ed25519 key). */
int signing_key_load(struct signing_key **ret, const char *path, struct brumate_error *err);
void signing_key_free(struct signing_key *k);
DEFINE_AUTO(struct signing_key *, signing_key_free)

/** Signs a manifest whose body has the digest @body. 0 or -ENOMEM. */
int signing_make(char ret_signer[static DIGEST_TEXT_BYTES],
		 char ret_signature[static MANIFEST_SIGNATURE_BYTES], const struct signing_key *k,
		 const struct digest *body);

/** Reads all files "*.pem" of the directory @path (owned). The directory and its files must belong to the caller
 * or root, and nobody else may write to them: what cannot be read or is not a key is an error, not left out. -ENOKEY
 * (no such directory), -EACCES, -EINVAL. */
int trusted_keys_load(struct trusted_keys **ret, const char *path, struct brumate_error *err);
void trusted_keys_free(struct trusted_keys *t);
DEFINE_AUTO(struct trusted_keys *, trusted_keys_free)

/** Compares a signature, in hexadecimal as manifest_decode() lets pass. -EKEYREJECTED: @signer is none of @t;
 * -EBADMSG: it is not by @signer; -ENOMEM. */
int trusted_keys_check(const struct trusted_keys *t, const char *signer, const char *signature,
		       const struct digest *body);
