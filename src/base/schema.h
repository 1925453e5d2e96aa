// SPDX-License-Identifier: MIT
/*
 * A structure and its JSON object, member by member: a table says of each its name, type, place and range. Encoder, decoder
 * and destructor are loops over such tables, so none of them can forget a member. Decoders take untrusted input; members
 * that are in no table are ignored. Pure.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/error.h"

enum field_kind {
	FIELD_TEXT,	/* char[size], NUL-terminated */
	FIELD_STRING,	/* char *, owned */
	FIELD_OPTIONAL, /* char *, owned, or NULL, which is null in JSON */
	FIELD_ARGV,	/* char **, NULL-terminated, owned */
	FIELD_LINE, /* char[size], NUL-terminated: as it is, but for bytes that JSON cannot hold */
	FIELD_RAW, /* char *, owned, or NULL, which is null: as it is, or an object with "hex" where JSON cannot hold it */
	FIELD_RAW_TEXT, /* char[size], NUL-terminated: likewise */
	FIELD_RAW_ARGV, /* char **, NULL-terminated, owned: likewise */
	FIELD_U64,
	FIELD_U32,
	FIELD_INT,
	FIELD_BOOL,
	FIELD_SECONDS, /* double; whole microseconds in JSON */
	FIELD_DIGEST,
	FIELD_REAL, /* double, as JSON has it */
	FIELD_WORD, /* an enum; one of words in JSON */
	FIELD_BITS, /* uint32_t; an array of the words whose bits are set, of which others are passed over */
	FIELD_GROUP, /* an object whose members lie in the same structure, or in one in it */
	FIELD_LIST,  /* an array of objects; a pointer, owned, and a count */
	FIELD_ROWS,  /* likewise, in the structure itself; max: for how many there is room */
};

struct schema_field {
	const char *name;
	enum field_kind kind;
	size_t offset;
	size_t size; /* of a TEXT with its NUL; of an element of a LIST */
	int64_t min; /* of U64, U32, INT; of a WORD: what stands for words that are not known, 0: these are refused */
	int64_t max; /* of those; of elements of a LIST or ARGV; of bytes of a STRING; of words of a WORD */
	const struct schema_field
		*members; /* of LIST and ROWS: one without a name is the value itself */
	size_t n_members;
	size_t count_offset; /* of the count of a LIST or of ROWS */
	const char *const *words;
	int since; /* version of the format that introduced it; 0: the first */
	/* Omitted if a LIST, ARGV, TEXT or LINE is empty, a U64 is 0, or a BOOL is false. */
	bool optional;
	/* Of an optional member, of any kind: a bool of the structure that says whether it is there. 0: its value does. */
	size_t given_offset;
	/* Null if a TEXT or LINE is empty, a U64 or INT below its range, or the first member of a GROUP one of these. Where
	 * it is null or missing, it stays as it is. */
	bool nullable;
	bool lenient; /* always written, but null or missing in what older versions wrote: stays as it is */
};

#define N_OF(array) (sizeof(array) / sizeof((array)[0]))
/* @...: since and optional, if needed. */
#define FIELD(type, key, member, type_kind, ...)                                              \
	{                                                                                     \
		.name = key, .kind = type_kind, .offset = offsetof(type, member), __VA_ARGS__ \
	}
#define TEXT(type, key, member, ...) \
	FIELD(type, key, member, FIELD_TEXT, .size = sizeof(((type *)0)->member), __VA_ARGS__)
#define NUMBER(type, key, member, type_kind, low, high, ...) \
	FIELD(type, key, member, type_kind, .min = low, .max = high, __VA_ARGS__)
#define BYTES(type, member) NUMBER(type, #member, member, FIELD_U64, 0, INT64_MAX)
#define PLAIN(type, key, member, type_kind) \
	FIELD(type, key, member, type_kind, .max = STRING_BYTES_MAX)
#define LINE(type, key, member, ...) \
	FIELD(type, key, member, FIELD_LINE, .size = sizeof(((type *)0)->member), __VA_ARGS__)
#define WORD(type, member, list) \
	FIELD(type, #member, member, FIELD_WORD, .max = N_OF(list), .words = list)
#define LIST(type, key, member, count, table, most, ...)                                         \
	FIELD(type, key, member, FIELD_LIST, .size = sizeof(*((type *)0)->member), .max = most,  \
	      .members = table, .n_members = N_OF(table), .count_offset = offsetof(type, count), \
	      __VA_ARGS__)
#define ROWS(type, key, member, count, table, ...)                                          \
	FIELD(type, key, member, FIELD_ROWS, .size = sizeof(((type *)0)->member[0]),        \
	      .max = N_OF(((type *)0)->member), .members = table, .n_members = N_OF(table), \
	      .count_offset = offsetof(type, count), __VA_ARGS__)
#define GROUP(key, table, ...)                                                                \
	{                                                                                     \
		.name = key, .kind = FIELD_GROUP, .members = table, .n_members = N_OF(table), \
		__VA_ARGS__                                                                   \
	}

/* Its members are those of the structure @member. */
#define PART(type, key, member, table, ...)                                               \
	FIELD(type, key, member, FIELD_GROUP, .members = table, .n_members = N_OF(table), \
	      __VA_ARGS__)

enum { STRING_BYTES_MAX = 1 << 20, SCHEMA_ARGUMENT_BYTES_MAX = 64 << 20 };

/** Adds the members of @base that @version has to @object. 0 or -ENOMEM. */
int schema_encode(json_t *object, const struct schema_field *fields, size_t n, const void *base,
		  int version);

/** Fills @base, which was zeros, from @object; schema_free() releases it, after a failure too. -EBADMSG, -ENOMEM. */
int schema_decode(const struct schema_field *fields, size_t n, void *base, json_t *object,
		  int version, struct brumate_error *err);

/** Frees what the members own. */
void schema_free(const struct schema_field *fields, size_t n, void *base);

/** @text as a string, each byte that is not ASCII as '?' where it is not UTF-8. NULL without memory. */
json_t *schema_encode_line(const char *text);

/** A digest as text, and back. */
json_t *schema_encode_digest(const struct digest *d);
int schema_decode_digest(struct digest *ret, json_t *value, struct brumate_error *err);
