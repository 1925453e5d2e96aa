// SPDX-License-Identifier: MIT
/*
 * The members of a manifest, once: name, type, place in struct manifest and range. Encoder, decoder
 * and destructor are loops over these tables, so none of them can forget a member.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "image/manifest.h"

enum field_kind {
	FIELD_TEXT,	/* char[size], NUL-terminated */
	FIELD_STRING,	/* char *, owned */
	FIELD_OPTIONAL, /* char *, owned, or NULL, which is null in JSON */
	FIELD_ARGV,	/* char **, NULL-terminated, owned */
	FIELD_U64,
	FIELD_U32,
	FIELD_INT,
	FIELD_BOOL,
	FIELD_SECONDS, /* double; whole microseconds in JSON */
	FIELD_DIGEST,
	FIELD_WORD,  /* an enum; one of words in JSON */
	FIELD_GROUP, /* an object whose members lie in the same structure */
	FIELD_LIST,  /* an array of objects; a pointer, owned, and a count */
};

struct field {
	const char *name;
	enum field_kind kind;
	size_t offset;
	size_t size; /* of a TEXT with its NUL; of an element of a LIST */
	int64_t min; /* of U64, U32, INT */
	int64_t max; /* of those; elements of a LIST or ARGV; bytes of a STRING; words of a WORD */
	const struct field *members;
	size_t n_members;
	size_t count_offset; /* of a LIST's count */
	const char *const *words;
	int since;     /* version of the manifest that has it first; 0: all */
	bool optional; /* of a LIST: not there where it has no items */
};

extern const struct field manifest_fields[];
extern const size_t manifest_n_fields;

/* What the tables cannot say: names, paths, order, words. Returns 0 or -EBADMSG. Pure. */
int manifest_check(const struct manifest *m, struct brumate_error *err);

#define MANIFEST_FORMAT "brumate-checkpoint"

/* Longest duration that is written: beyond it microseconds lose precision in a double. */
#define MANIFEST_SECONDS_MAX 1e9

/* Digest of the canonical text of @object, which must not have the member "digest".
 * Returns 0 or -ENOMEM. */
int manifest_canonical_digest(struct digest *ret, const json_t *object);
