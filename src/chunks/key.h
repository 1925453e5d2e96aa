// SPDX-License-Identifier: MIT
/*
 * The key of a store that is encrypted, and the keys that come of it (docs/image-format.md, "Sealed").
 * It is given by whoever writes or reads; a checkpoint has its id only.
 */
#pragma once

#include "base/chunk.h"
#include "base/cleanup.h"
#include "base/error.h"
#include "base/seal.h"

enum { STORE_KEY_ID_BYTES = 33 }; /* as in the manifest */

struct store_key {
	struct chunk_key digests; /* of chunks, so that their names tell nothing */
	struct seal_key chunks, files, manifest;
	char id[STORE_KEY_ID_BYTES]; /* tells keys apart, and nothing else */
};
void store_key_fini(struct store_key *k);
DEFINE_AUTO_FINI(struct store_key, store_key_fini)

/** All that comes of @from. 0 or -ENOMEM. */
int store_key_make(struct store_key *ret, const struct seal_key *from);

/** Opens a file with a secret, which errors call @what. Refuses one that others than its owner, who must be the
 * caller or root, may read. Returns an owned fd; -ENOKEY (no such file), -EACCES, -EINVAL (no regular file). */
int store_key_open(const char *what, const char *path, struct brumate_error *err);

/** Reads the bytes of the key from a file, as store_key_load(). */
int store_key_read(struct seal_key *ret, const char *path, struct brumate_error *err);

/** Reads the key from the file at @path, a credential of systemd's for example. Refuses one that others
 * than its owner, who must be the caller or root, may read. Errors to act on: -ENOKEY (no such file), -EACCES,
 * -EINVAL (it holds no key). */
int store_key_load(struct store_key *ret, const char *path, struct brumate_error *err);

/** The key that @text is (seal_key_parse()), which comes from @from. -EINVAL, -ENOMEM. */
int store_key_parse(struct store_key *ret, const char *from, const void *text, size_t len_bytes,
		    struct brumate_error *err);

/** Encrypts the stored bytes of a chunk, or decrypts them, in place. @digest: of the chunk, keyed; @pack
 * and @offset: where they are, which nothing else ever was or will be. 0 or -ENOMEM. */
int store_key_chunk(const struct store_key *k, const struct digest *digest, const char *pack,
		    uint64_t offset, void *data, size_t len_bytes);
