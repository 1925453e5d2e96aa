// SPDX-License-Identifier: MIT
/*
 * Signatures by ed25519 (RFC 8032), through libcrypto: the key that signs, and those that are trusted. Keys are PEM
 * files as `openssl genpkey -algorithm ed25519` and `openssl pkey -pubout` write them. A key goes by the SHA-256 of
 * its 32 public bytes.
 */
#pragma once

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/error.h"
#include "image/manifest.h"

struct signing_key;

/** Reads the private key in the file at @path (owned). Refuses one that others than its owner, who must be the
 * caller or root, may read. -ENOKEY (no such file), -EACCES, -EINVAL (no ed25519 key). */
int signing_key_load(struct signing_key **ret, const char *path, struct brumate_error *err);
void signing_key_free(struct signing_key *k);
DEFINE_AUTO(struct signing_key *, signing_key_free)

/** Signs a manifest whose body has the digest @body. 0 or -ENOMEM. */
int signing_make(char ret_signer[static DIGEST_TEXT_BYTES],
		 char ret_signature[static MANIFEST_SIGNATURE_BYTES], const struct signing_key *k,
		 const struct digest *body);

struct trusted_keys;

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
