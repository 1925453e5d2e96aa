// SPDX-License-Identifier: MIT
/* Large objects in parts, several at a time, resumed where an earlier attempt ended. Private. */
#pragma once

#include "remote/http.h"

enum { UPLOAD_PARTS_MAX = 10000 };

struct upload_part {
	char etag[128];	   /* empty: not there yet */
	char checksum[48]; /* base64 of its SHA-256; empty: the server did not keep it */
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

/** Size of the parts of an object of @len_bytes. Pure. */
uint64_t upload_part_bytes(uint64_t len_bytes, uint64_t wanted_bytes);

/** Finds an unfinished upload of @key with its parts, else creates one. @digest: of all of it, to be kept as
 * metadata; NULL: not known. */
int upload_begin(struct upload *u, struct session *s, const char *key, uint64_t len_bytes,
		 uint64_t part_bytes, const struct digest *digest, struct brumate_error *err);

/** Puts part @i of @fd, unless it is there. */
int upload_put(struct upload *u, struct session *s, const char *key, size_t i, int fd,
	       struct brumate_error *err);

/** Makes the object out of its parts: before, it is not there. */
int upload_end(struct upload *u, struct session *s, const char *key, struct brumate_error *err);

/** Gives the upload up, with its parts. */
int upload_abort(struct upload *u, struct session *s, const char *key, struct brumate_error *err);
