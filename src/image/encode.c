// SPDX-License-Identifier: MIT
/* Writes a manifest as JSON, member by member of the tables. Never writes what it could not read. */
#include "image/escape.h"
#include "image/schema.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *encode_object(const struct field *fields, size_t n, const char *base, int version);

static json_t *encode_text(const char *raw, size_t max_bytes)
{
	auto_free char *escaped = text_escape(raw, max_bytes);

	return escaped ? json_string(escaped) : NULL;
}

static json_t *encode_argv(char *const *argv)
{
	json_t *array = json_array();

	for (size_t i = 0; array && argv && argv[i]; i++) {
		if (json_array_append_new(array, encode_text(argv[i], SIZE_MAX)) < 0) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static json_t *encode_list(const struct field *f, const char *base, int version)
{
	const char *elements = *(char *const *)(base + f->offset);
	size_t n = *(const size_t *)(base + f->count_offset);
	json_t *array = json_array();

	for (size_t i = 0; array && i < n; i++) {
		json_t *element =
			encode_object(f->members, f->n_members, elements + i * f->size, version);

		if (json_array_append_new(array, element) < 0) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

/* What is out of range becomes -1, which the decoder refuses. */
static json_int_t microseconds(double seconds)
{
	return seconds >= 0 && seconds <= MANIFEST_SECONDS_MAX ? llround(seconds * 1e6) : -1;
}

static json_t *encode_digest(const struct digest *d)
{
	char text[DIGEST_TEXT_BYTES];

	digest_format(text, d);
	return json_string(text);
}

/* A word that is none becomes null, which the decoder refuses. */
static json_t *encode_word(const struct field *f, unsigned value)
{
	return value < (uint64_t)f->max ? json_string(f->words[value]) : json_null();
}

static json_t *encode_field(const struct field *f, const char *base, int version)
{
	const char *at = base + f->offset;
	const char *string;

	switch (f->kind) {
	case FIELD_TEXT:
		return encode_text(at, f->size);
	case FIELD_STRING:
	case FIELD_OPTIONAL:
		string = *(char *const *)at;
		return string ? encode_text(string, SIZE_MAX) : json_null();
	case FIELD_ARGV:
		return encode_argv(*(char **const *)at);
	case FIELD_U64:
		return json_integer((json_int_t) * (const uint64_t *)at);
	case FIELD_U32:
		return json_integer(*(const uint32_t *)at);
	case FIELD_INT:
		return json_integer(*(const int *)at);
	case FIELD_BOOL:
		return json_boolean(*(const bool *)at);
	case FIELD_SECONDS:
		return json_integer(microseconds(*(const double *)at));
	case FIELD_DIGEST:
		return encode_digest((const struct digest *)at);
	case FIELD_WORD:
		return encode_word(f, *(const unsigned *)at);
	case FIELD_GROUP:
		return encode_object(f->members, f->n_members, base, version);
	case FIELD_LIST:
		return encode_list(f, base, version);
	}
	return NULL;
}

static bool is_left_out(const struct field *f, const char *base)
{
	return f->optional && !*(const size_t *)(base + f->count_offset);
}

static int encode_fields(json_t *object, const struct field *fields, size_t n, const char *base,
			 int version)
{
	for (const struct field *f = fields; f < fields + n; f++)
		if (f->since <= version && !is_left_out(f, base) &&
		    json_object_set_new(object, f->name, encode_field(f, base, version)) < 0)
			return -ENOMEM;
	return 0;
}

static json_t *encode_object(const struct field *fields, size_t n, const char *base, int version)
{
	json_t *object = json_object();

	if (object && encode_fields(object, fields, n, base, version) < 0) {
		json_decref(object);
		return NULL;
	}
	return object;
}

json_t *manifest_to_json(const struct manifest *m)
{
	int version = m->version ? m->version : MANIFEST_VERSION;
	json_auto_t *object =
		json_pack("{s:s, s:i}", "format", MANIFEST_FORMAT, "version", version);
	struct digest digest;

	if (!object ||
	    encode_fields(object, manifest_fields, manifest_n_fields, (const char *)m, version) < 0)
		return NULL;
	if (manifest_canonical_digest(&digest, object) < 0)
		return NULL;
	if (json_object_set_new(object, "digest", encode_digest(&digest)) < 0)
		return NULL;
	return json_incref(object);
}

int manifest_encode(const struct manifest *m, char **ret_text, size_t *ret_len_bytes,
		    struct brumate_error *err)
{
	json_auto_t *object = manifest_to_json(m);
	if (!object)
		return brumate_fail(err, ENOMEM, "manifest: %m");

	auto_free char *text = json_dumps(object, JSON_INDENT(1));
	size_t len = text ? strlen(text) : 0;
	char *line = text ? realloc(text, len + 2) : NULL;
	if (!line)
		return brumate_fail(err, ENOMEM, "manifest: %m");
	text = line;
	memcpy(text + len++, "\n", 2);

	auto_(manifest_fini) struct manifest again = MANIFEST_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = manifest_decode(&again, text, len, &why);
	if (r < 0)
		return brumate_fail(err, r == -ENOMEM ? ENOMEM : EINVAL, "%s", why.text);

	*ret_text = take_ptr(&text);
	*ret_len_bytes = len;
	return 0;
}
