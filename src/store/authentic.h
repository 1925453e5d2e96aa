// SPDX-License-Identifier: MIT
/*
 * Whether a checkpoint comes from a trusted writer (docs/image-format.md, "Authentic"): a MAC with the key of the
 * store, or a signature, of the manifest, whose digests cover everything else. Reads no data.
 *
 * Signatures are ed25519 (RFC 8032), by libcrypto. Keys are PEM files as written by `openssl genpkey -algorithm
 * ed25519` and `openssl pkey -pubout`. A key is identified by the SHA-256 of its 32 public bytes.
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

/** What is accepted as proof of a checkpoint's origin. */
struct authority {
	bool has_key;
	struct store_key key;	      /* with has_key: MACs must be made with it */
	struct trusted_keys *trusted; /* owned; NULL: no signature is required */
	bool lenient; /* accept checkpoints without proof; those with a forged one are never accepted */
};
#define AUTHORITY_EMPTY ((struct authority){ 0 })
void authority_fini(struct authority *a);
DEFINE_AUTO_FINI(struct authority, authority_fini)

/** Makes the MAC of @m if @key is not NULL, and its signature if @signing is not. 0 or -ENOMEM. */
int authentic_make(struct manifest *m, const struct store_key *key,
		   const struct signing_key *signing);

/**
 * Decides whether @a accepts @m, which is decoded. Errors to act on: -EKEYREJECTED (it has no proof of its origin, or
 * that of an untrusted writer; a lenient @a accepts it), -EBADMSG (its MAC or signature is forged).
 */
int authentic_check(const struct manifest *m, const struct authority *a, struct brumate_error *err);

/** The same for an open checkpoint. The name of its directory must be its id, too, as the newest checkpoint of a job
 * is found by names. */
int authentic_check_image(const struct store_image *i, const struct authority *a,
			  struct brumate_error *err);

/** Reads the private key in the file at @path (owned). Refuses a file that may be read by others than its owner, who
 * must be the caller or root. -ENOKEY (no such file), -EACCES, -EINVAL (not an ed25519 key). */
int signing_key_load(struct signing_key **ret, const char *path, struct brumate_error *err);
void signing_key_free(struct signing_key *k);
DEFINE_AUTO(struct signing_key *, signing_key_free)

/** Signs a manifest whose body has the digest @body. 0 or -ENOMEM. */
int signing_make(char ret_signer[static DIGEST_TEXT_BYTES],
		 char ret_signature[static MANIFEST_SIGNATURE_BYTES], const struct signing_key *k,
		 const struct digest *body);

/** Reads all files "*.pem" of the directory @path (owned). The directory and its files must belong to the caller or
 * root and be writable by their owner only. A file that cannot be read or is not a key is an error, and not skipped.
 * -ENOKEY (no such directory), -EACCES, -EINVAL. */
int trusted_keys_load(struct trusted_keys **ret, const char *path, struct brumate_error *err);
void trusted_keys_free(struct trusted_keys *t);
DEFINE_AUTO(struct trusted_keys *, trusted_keys_free)

/** Verifies a signature, in hexadecimal as manifest_decode() accepts it. -EKEYREJECTED: @signer is not in @t;
 * -EBADMSG: it is not @signer's; -ENOMEM. */
int trusted_keys_check(const struct trusted_keys *t, const char *signer, const char *signature,
		       const struct digest *body);
