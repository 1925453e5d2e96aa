// SPDX-License-Identifier: MIT
/*
 * Encryption of stored data: boxes by AES-256-GCM, and keys derived from keys (docs/image-format.md, "Sealed"). A box
 * is a random nonce of 12 bytes, the encrypted bytes, and a tag of 16 bytes; it opens only with its key and the same
 * associated data, and only unchanged. Random nonces are safe for some billions of boxes with one key; nevertheless,
 * users derive a key for each object, so that no key is used for many. Reads no file and keeps no state; any number
 * of threads at a time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

enum {
	SEAL_KEY_BYTES = 32,
	SEAL_NONCE_BYTES = 12,
	SEAL_TAG_BYTES = 16,
	SEAL_EXTRA_BYTES = SEAL_NONCE_BYTES + SEAL_TAG_BYTES, /* of a box without its content */
	SEAL_BYTES_MAX = 1 << 30,			      /* in one box */
};

struct seal_key {
	uint8_t bytes[SEAL_KEY_BYTES];
};

/** Overwrites the key, in a way that the compiler does not optimize away. */
void seal_key_fini(struct seal_key *k);
DEFINE_AUTO_FINI(struct seal_key, seal_key_fini)

/** Parses a key: 32 bytes, or 64 hexadecimal digits with an optional newline. -EINVAL for anything else. */
int seal_key_parse(struct seal_key *ret, const void *text, size_t len_bytes);

/** Derives the key for @purpose (not empty, a literal) and @context from @from. It reveals nothing about @from or
 * other derived keys. 0 or -ENOMEM. */
int seal_derive(struct seal_key *ret, const struct seal_key *from, const char *purpose,
		const void *context, size_t len_bytes);

/** Associated data of a box, which is not in it: both sides must have the same. */
struct seal_with {
	const void *data;
	size_t len_bytes;
};
#define SEAL_WITH_NOTHING ((struct seal_with){ 0 })

/** Encrypts @len_bytes of @buf into a box at @ret, which is SEAL_EXTRA_BYTES longer and does not overlap @buf. 0,
 * -EFBIG, -ENOMEM, or getrandom(2)'s -errno. */
int seal_close(void *ret, const struct seal_key *key, struct seal_with with, const void *buf,
	       size_t len_bytes);

/** Opens a box of @len_bytes (with SEAL_EXTRA_BYTES). @ret does not overlap it. -EBADMSG: wrong key, wrong associated
 * data, or damaged; @ret is cleared then. -ENOMEM. */
int seal_open(void *ret, const struct seal_key *key, struct seal_with with, const void *box,
	      size_t len_bytes);

/** Encrypts or decrypts (the same operation) @len_bytes of @buf to @ret (which may be @buf). The key must be derived
 * from the content and used for nothing else. Does not detect changes: the caller needs a keyed digest of the bytes.
 * -EFBIG, -ENOMEM. */
int seal_stream(void *ret, const struct seal_key *key, const void *buf, size_t len_bytes);

/* For bytes that are written in place repeatedly: XTS-AES-256, with each unit tweaked by its position, so that the
 * bytes take no more space and need no extra data. Does not detect changes. */
enum { SEAL_DISK_UNIT_BYTES = 4096 };

struct seal_disk_key {
	uint8_t bytes[64];
};

void seal_disk_key_fini(struct seal_disk_key *k);
DEFINE_AUTO_FINI(struct seal_disk_key, seal_disk_key_fini)

enum seal_disk_way { SEAL_DISK_OPEN, SEAL_DISK_CLOSE };

/** Decrypts or encrypts @len_bytes of @buf, at @offset of the object of @key, to @ret (which may be @buf). -EINVAL:
 * @offset or @len_bytes is not a multiple of SEAL_DISK_UNIT_BYTES; -ENOMEM. */
int seal_disk(void *ret, const struct seal_disk_key *key, enum seal_disk_way way, uint64_t offset,
	      const void *buf, size_t len_bytes);
