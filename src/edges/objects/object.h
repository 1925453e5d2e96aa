// SPDX-License-Identifier: MIT
/* Operations on the objects of a store, and finding those that are checkpoints. Private to this layer. */
#pragma once

#include "edges/objects/http.h"

/** Puts @len_bytes of @fd from offset 0. The server checks their digest and keeps it as metadata. */
int object_put(struct http_connection *s, const char *key, int fd, uint64_t len_bytes,
	       const struct digest *digest, struct brumate_error *err);

/** Puts a text. */
int object_put_text(struct http_connection *s, const char *key, const char *text, size_t len_bytes,
		    struct brumate_error *err);

/** Gets the size and the digest of the object @key. -ENOENT: there is none. */
int object_head(struct http_connection *s, const char *key, uint64_t *ret_len_bytes,
		char ret_digest[static DIGEST_TEXT_BYTES], struct brumate_error *err);

/** Gets a small object as NUL-terminated text (owned). */
int object_get_text(struct http_connection *s, const char *key, char **ret, size_t *ret_len_bytes,
		    struct brumate_error *err);

/** Writes @len_bytes of the object from @offset into @fd at the same offset. Any thread, any order. */
int object_get_range(struct http_connection *s, const char *key, uint64_t offset,
		     uint64_t len_bytes, int fd, struct brumate_error *err);

/** Gets @len_bytes of the object from @offset into memory. */
int object_get_bytes(struct http_connection *s, const char *key, uint64_t offset,
		     uint64_t len_bytes, void *ret, struct brumate_error *err);

int object_delete(struct http_connection *s, const char *key, struct brumate_error *err);

/** Receives one entry of a listing: @name is relative to the prefix; names that end in '/' are prefixes. */
typedef int (*object_fn)(void *arg, const char *name, uint64_t len_bytes);

/**
 * Lists names that start with @prefix, page by page; @folders: only up to the next '/'. <0 of @fn ends it.
 */
int object_list(struct http_connection *s, const char *prefix, bool folders, object_fn fn,
		void *arg, struct brumate_error *err);

/* ---- uploads in parts ---- */

/* Large objects are uploaded in parts, several at a time, and an upload continues where an earlier attempt ended. */

enum { UPLOAD_PARTS_MAX = 10000, OBJECT_CHECKSUM_BYTES = 48 };

struct upload_part {
	char etag[128]; /* empty: not uploaded yet */
	/* base64 of its SHA-256; empty: the server did not keep it */
	char checksum[OBJECT_CHECKSUM_BYTES];
	uint64_t len_bytes;
};

/** One upload. Parts may be put from several threads; begin and end are for one. */
struct upload {
	char *id; /* owned */
	struct upload_part *parts;
	size_t n_parts;
	uint64_t part_bytes, len_bytes;
};
#define UPLOAD_EMPTY ((struct upload){ 0 })
void upload_fini(struct upload *u);
DEFINE_AUTO_FINI(struct upload, upload_fini)

/** The size of the parts for an object of @len_bytes. Pure. */
uint64_t upload_part_bytes(uint64_t len_bytes, uint64_t wanted_bytes);

/** Finds an unfinished upload of @key with its parts, else creates one. @digest: of the whole object, to be kept as
 * metadata; NULL: unknown. */
int upload_begin(struct upload *u, struct http_connection *s, const char *key, uint64_t len_bytes,
		 uint64_t part_bytes, const struct digest *digest, struct brumate_error *err);

/** Puts part @i of @fd, unless the upload has it. */
int upload_put(struct upload *u, struct http_connection *s, const char *key, size_t i, int fd,
	       struct brumate_error *err);

/** Makes the object out of its parts. It does not exist before. */
int upload_end(struct upload *u, struct http_connection *s, const char *key,
	       struct brumate_error *err);

/** Aborts the upload and discards its parts. */
int upload_abort(struct upload *u, struct http_connection *s, const char *key,
		 struct brumate_error *err);

/* ---- the checkpoints of a place, found by their manifests (find.c) ---- */

/** A checkpoint that was found, with its manifest. Owns its members. */
struct found {
	char *id;
	char *text; /* NULL: missing or unusable */
	size_t len;
	struct manifest manifest;
	struct brumate_error why; /* if @text is NULL */
	bool incomplete; /* without a manifest: a push of it is under way, or was interrupted */
};
void found_fini(struct found *f);
DEFINE_AUTO_FINI(struct found, found_fini)

/** Finds the checkpoint for @word: an id, a job's name or id (its latest), or the beginning of an id. */
int find_one(struct http_client *c, const char *word, struct found *ret,
	     const struct http_watch *watch, struct brumate_error *err);
