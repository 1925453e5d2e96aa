// SPDX-License-Identifier: MIT
/*
 * The key of an encrypted store, and the keys that are derived from it (docs/image-format.md, "Sealed"). Writers and
 * readers supply it; a checkpoint only has its id.
 */
#pragma once

#include "base/chunk.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/seal.h"

enum { STORE_KEY_ID_BYTES = 33 }; /* as in the manifest */

struct store_key {
	struct chunk_key digests; /* of chunks, so that their names reveal nothing */
	struct seal_key chunks, files, manifest;
	char id[STORE_KEY_ID_BYTES]; /* identifies the key, and reveals nothing else */
};
void store_key_fini(struct store_key *k);
DEFINE_AUTO_FINI(struct store_key, store_key_fini)

/** Derives everything from @from. 0 or -ENOMEM. */
int store_key_make(struct store_key *ret, const struct seal_key *from);

/** Opens a file with a secret, which messages call @what. Refuses a file that may be read by others than its owner,
 * who must be the caller or root. Returns an owned fd; -ENOKEY (no such file), -EACCES, -EINVAL (not a regular file). */
int store_key_open(const char *what, const char *path, struct brumate_error *err);

/** Reads the bytes of the key from a file, like store_key_load(). */
int store_key_read(struct seal_key *ret, const char *path, struct brumate_error *err);

/** Reads the key from the file at @path, for example a credential of systemd. Refuses a file that may be read by
 * others than its owner, who must be the caller or root. Errors to act on: -ENOKEY (no such file), -EACCES, -EINVAL
 * (it contains no key). */
int store_key_load(struct store_key *ret, const char *path, struct brumate_error *err);

/** Parses @text (seal_key_parse()); @from names its origin in messages. -EINVAL, -ENOMEM. */
int store_key_parse(struct store_key *ret, const char *from, const void *text, size_t len_bytes,
		    struct brumate_error *err);

/** Encrypts or decrypts the stored bytes of a chunk in place. @digest: of the chunk, keyed; @pack and @offset: its
 * place, which is never used for anything else. 0 or -ENOMEM. */
int store_key_chunk(const struct store_key *k, const struct digest *digest, const char *pack,
		    uint64_t offset, void *data, size_t len_bytes);
