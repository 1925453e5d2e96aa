// SPDX-License-Identifier: MIT
/* Objects: put, get (whole or a range), head, list, delete. Private to this layer. */
#pragma once

#include "remote/http.h"

/** Puts @len_bytes of @fd from 0, whose digest the server checks and keeps as metadata. */
int object_put(struct session *s, const char *key, int fd, uint64_t len_bytes,
	       const struct digest *digest, struct brumate_error *err);

/** Puts a text. */
int object_put_text(struct session *s, const char *key, const char *text, size_t len_bytes,
		    struct brumate_error *err);

/** What is there under @key: 0 and size and digest; -ENOENT. */
int object_head(struct session *s, const char *key, uint64_t *ret_len_bytes,
		char ret_digest[static DIGEST_TEXT_BYTES], struct brumate_error *err);

/** A small object as NUL-terminated text (owned). */
int object_get_text(struct session *s, const char *key, char **ret, size_t *ret_len_bytes,
		    struct brumate_error *err);

/** Writes @len_bytes of the object from @offset into @fd at the same offset. Any thread, any order. */
int object_get_range(struct session *s, const char *key, uint64_t offset, uint64_t len_bytes,
		     int fd, struct brumate_error *err);

/** As object_get_range(), into memory. */
int object_get_bytes(struct session *s, const char *key, uint64_t offset, uint64_t len_bytes,
		     void *ret, struct brumate_error *err);

int object_delete(struct session *s, const char *key, struct brumate_error *err);

/** One entry of a listing: @name is what follows the prefix; names that end in '/' are prefixes. */
typedef int (*object_fn)(void *arg, const char *name, uint64_t len_bytes);

/**
 * Lists what starts with @prefix, page by page; @folders: only up to the next '/'. <0 of @fn ends it.
 */
int object_list(struct session *s, const char *prefix, bool folders, object_fn fn, void *arg,
		struct brumate_error *err);

/** The digest as base64, as checksum headers have it. */
enum { OBJECT_CHECKSUM_BYTES = 48 };
void object_checksum(char ret[static OBJECT_CHECKSUM_BYTES], const struct digest *d);
