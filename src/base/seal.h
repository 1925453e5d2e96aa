// SPDX-License-Identifier: MIT
/*
 * Secrets at rest: boxes by AES-256-GCM, and keys made from keys (docs/image-format.md, "Sealed"). A box
 * is a random nonce of 12 bytes, the bytes encrypted, and a tag of 16; it opens only with its key and
 * with the same associated data, unchanged to the last bit. Random nonces are safe for some billions of
 * boxes of one key; users derive a key for each object all the same, so that no key makes many.
 * Reads no file and keeps nothing; any number of threads at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

enum {
	SEAL_KEY_BYTES = 32,
	SEAL_NONCE_BYTES = 12,
	SEAL_TAG_BYTES = 16,
	SEAL_EXTRA_BYTES = SEAL_NONCE_BYTES + SEAL_TAG_BYTES, /* of a box over what is in it */
	SEAL_BYTES_MAX = 1 << 30,			      /* in one box */
};

struct seal_key {
	uint8_t bytes[SEAL_KEY_BYTES];
};

/** Overwrites the key, in a way that the compiler does not optimize away. */
void seal_key_fini(struct seal_key *k);
DEFINE_AUTO_FINI(struct seal_key, seal_key_fini)

/** Reads a key: 32 bytes, or 64 hexadecimal digits and perhaps a newline. -EINVAL for all else. */
int seal_key_parse(struct seal_key *ret, const void *text, size_t len_bytes);

/** The key for @purpose (not empty, a literal) and @context that comes of @from; it tells nothing about
 * @from or about others. 0 or -ENOMEM. */
int seal_derive(struct seal_key *ret, const struct seal_key *from, const char *purpose,
		const void *context, size_t len_bytes);

/** Bytes that go with a box without being in it: both sides must have the same. */
struct seal_with {
	const void *data;
	size_t len_bytes;
};
#define SEAL_WITH_NOTHING ((struct seal_with){ 0 })

/** Puts @len_bytes of @buf into a box at @ret, which is SEAL_EXTRA_BYTES longer and does not overlap
 * @buf. 0, -EFBIG, -ENOMEM, or getrandom(2)'s -errno. */
int seal_close(void *ret, const struct seal_key *key, struct seal_with with, const void *buf,
	       size_t len_bytes);

/** Opens a box of @len_bytes (with SEAL_EXTRA_BYTES). @ret does not overlap it. -EBADMSG: another key,
 * other data with it, or damaged; @ret then holds nothing of use. -ENOMEM. */
int seal_open(void *ret, const struct seal_key *key, struct seal_with with, const void *box,
	      size_t len_bytes);

/** Encrypts or decrypts @len_bytes of @buf, the same way, to @ret (which may be @buf) under a key that is
 * made of what is in it and of nothing else: a key that serves once. Says nothing of changes: whoever uses
 * it has a keyed digest of the bytes. -EFBIG, -ENOMEM. */
int seal_stream(void *ret, const struct seal_key *key, const void *buf, size_t len_bytes);

/* Bytes that are written in place, time and again: XTS-AES-256, each unit under a key made of where it
 * is, so that bytes take no more room and nothing is kept beside them. It does not tell of changes. */
enum { SEAL_DISK_UNIT_BYTES = 4096 };

struct seal_disk_key {
	uint8_t bytes[64];
};

void seal_disk_key_fini(struct seal_disk_key *k);
DEFINE_AUTO_FINI(struct seal_disk_key, seal_disk_key_fini)

enum seal_disk_way { SEAL_DISK_OPEN, SEAL_DISK_CLOSE };

/** Decrypts or encrypts @len_bytes of @buf, which are at @offset of what @key is for, to @ret (which may
 * be @buf). -EINVAL: @offset or @len_bytes is not a multiple of SEAL_DISK_UNIT_BYTES; -ENOMEM. */
int seal_disk(void *ret, const struct seal_disk_key *key, enum seal_disk_way way, uint64_t offset,
	      const void *buf, size_t len_bytes);
