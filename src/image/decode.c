// SPDX-License-Identifier: MIT
/*
 * Reads a manifest from untrusted bytes: JSON, format, version, digest, then each member of the tables.
 * Pure. Members that are not in the tables are covered by the digest and otherwise ignored.
 */
#include "image/escape.h"
#include "image/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int decode_object(const struct field *fields, size_t n, char *base, json_t *object,
			 int version, struct brumate_error *err);

static int want(struct brumate_error *err, const char *what)
{
	return brumate_fail(err, EBADMSG, "want %s", what);
}

static int decode_string(char **ret, json_t *value, size_t max_bytes, struct brumate_error *err)
{
	char *raw;

	if (!json_is_string(value))
		return want(err, "a string");
	int r = text_unescape(&raw, json_string_value(value));
	if (r == -EBADMSG)
		return want(err, "a string whose escapes are \\\\ and \\xNN");
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if (strlen(raw) > max_bytes) {
		free(raw);
		return brumate_fail(err, EBADMSG, "want at most %zu bytes", max_bytes);
	}
	*ret = raw;
	return 0;
}

static int decode_text(const struct field *f, char *ret, json_t *value, struct brumate_error *err)
{
	auto_free char *raw = NULL;
	int r = decode_string(&raw, value, f->size - 1, err);

	if (r == 0)
		memcpy(ret, raw, strlen(raw) + 1);
	return r;
}

static int decode_argv(const struct field *f, char ***ret, json_t *value, struct brumate_error *err)
{
	if (!json_is_array(value) || (int64_t)json_array_size(value) > f->max)
		return brumate_fail(err, EBADMSG, "want an array of at most %" PRId64 " strings",
				    f->max);

	size_t n = json_array_size(value);
	*ret = calloc(n + 1, sizeof(**ret));
	if (!*ret)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		int r = decode_string(&(*ret)[i], json_array_get(value, i), MANIFEST_BYTES_MAX,
				      err);

		if (r < 0)
			return brumate_wrap(err, r, "item %zu", i);
	}
	return 0;
}

static int decode_integer(int64_t *ret, json_t *value, int64_t min, int64_t max,
			  struct brumate_error *err)
{
	int64_t n = json_integer_value(value);

	if (!json_is_integer(value) || n < min || n > max)
		return brumate_fail(err, EBADMSG, "want an integer from %" PRId64 " to %" PRId64,
				    min, max);
	*ret = n;
	return 0;
}

static int decode_number(const struct field *f, char *at, json_t *value, struct brumate_error *err)
{
	int64_t n = 0;
	int r = decode_integer(&n, value, f->min, f->max, err);

	if (r < 0)
		return r;
	if (f->kind == FIELD_U64)
		*(uint64_t *)at = (uint64_t)n;
	else if (f->kind == FIELD_U32)
		*(uint32_t *)at = (uint32_t)n;
	else
		*(int *)at = (int)n;
	return 0;
}

static int decode_seconds(double *ret, json_t *value, struct brumate_error *err)
{
	int64_t us = 0;
	int r = decode_integer(&us, value, 0, (int64_t)(MANIFEST_SECONDS_MAX * 1e6), err);

	if (r == 0)
		*ret = (double)us / 1e6;
	return r;
}

static int decode_digest(struct digest *ret, json_t *value, struct brumate_error *err)
{
	const char *text = json_string_value(value);

	return text && digest_parse(ret, text) == 0 ? 0
						    : want(err, "64 lower-case hexadecimal digits");
}

static int decode_word(const struct field *f, unsigned *ret, json_t *value,
		       struct brumate_error *err)
{
	const char *text = json_string_value(value);

	for (unsigned i = 0; text && i < (uint64_t)f->max; i++) {
		if (!strcmp(text, f->words[i])) {
			*ret = i;
			return 0;
		}
	}
	return want(err, "a word that this version knows");
}

static int decode_list(const struct field *f, char *base, json_t *value, int version,
		       struct brumate_error *err)
{
	size_t *count = (size_t *)(base + f->count_offset);
	char **elements = (char **)(base + f->offset);

	if (!json_is_array(value) || (int64_t)json_array_size(value) > f->max)
		return brumate_fail(err, EBADMSG, "want an array of at most %" PRId64 " items",
				    f->max);

	size_t n = json_array_size(value);
	if (n == 0)
		return 0;
	*elements = calloc(n, f->size);
	if (!*elements)
		return brumate_fail(err, ENOMEM, "%m");
	*count = n;
	for (size_t i = 0; i < n; i++) {
		int r = decode_object(f->members, f->n_members, *elements + i * f->size,
				      json_array_get(value, i), version, err);

		if (r < 0)
			return brumate_wrap(err, r, "item %zu", i);
	}
	return 0;
}

static int decode_field(const struct field *f, char *base, json_t *value, int version,
			struct brumate_error *err)
{
	char *at = base + f->offset;

	switch (f->kind) {
	case FIELD_TEXT:
		return decode_text(f, at, value, err);
	case FIELD_OPTIONAL:
		if (json_is_null(value))
			return 0;
		/* fall through */
	case FIELD_STRING:
		return decode_string((char **)at, value, (size_t)f->max, err);
	case FIELD_ARGV:
		return decode_argv(f, (char ***)at, value, err);
	case FIELD_U64:
	case FIELD_U32:
	case FIELD_INT:
		return decode_number(f, at, value, err);
	case FIELD_BOOL:
		if (!json_is_boolean(value))
			return want(err, "true or false");
		*(bool *)at = json_is_true(value);
		return 0;
	case FIELD_SECONDS:
		return decode_seconds((double *)at, value, err);
	case FIELD_DIGEST:
		return decode_digest((struct digest *)at, value, err);
	case FIELD_WORD:
		return decode_word(f, (unsigned *)at, value, err);
	case FIELD_GROUP:
		return decode_object(f->members, f->n_members, base, value, version, err);
	case FIELD_LIST:
		return decode_list(f, base, value, version, err);
	}
	return -EBADMSG;
}

static int decode_object(const struct field *fields, size_t n, char *base, json_t *object,
			 int version, struct brumate_error *err)
{
	if (!json_is_object(object))
		return want(err, "an object");

	for (const struct field *f = fields; f < fields + n; f++) {
		json_t *value = json_object_get(object, f->name);

		if (f->since > version || (f->optional && !value))
			continue;
		if (!value)
			return brumate_fail(err, EBADMSG, "%s is missing", f->name);
		int r = decode_field(f, base, value, version, err);
		if (r < 0)
			return brumate_wrap(err, r, "%s", f->name);
	}
	return 0;
}

static int check_version(int *ret, const json_t *object, struct brumate_error *err)
{
	const char *format = json_string_value(json_object_get(object, "format"));
	const json_t *version = json_object_get(object, "version");

	if (!format || strcmp(format, MANIFEST_FORMAT))
		return brumate_fail(err, EBADMSG, "not a brumate manifest");
	if (!json_is_integer(version) || json_integer_value(version) < 1)
		return brumate_fail(err, EBADMSG, "version: want an integer from 1");
	if (json_integer_value(version) > MANIFEST_VERSION) {
		brumate_fail(err, EPROTONOSUPPORT,
			     "version %" JSON_INTEGER_FORMAT
			     " is newer than version %d, the newest this "
			     "brumate reads",
			     json_integer_value(version), MANIFEST_VERSION);
		brumate_hint(err, "use the brumate that wrote it, or a newer one");
		return -EPROTONOSUPPORT;
	}
	*ret = (int)json_integer_value(version);
	return 0;
}

/* Takes "digest" out of @object and compares it with what is left. */
static int check_digest(json_t *object, struct brumate_error *err)
{
	struct digest wanted, found;
	json_t *member = json_object_get(object, "digest");

	if (!member)
		return brumate_fail(err, EBADMSG, "digest is missing");
	int r = decode_digest(&wanted, member, err);
	if (r < 0)
		return brumate_wrap(err, r, "digest");

	json_object_del(object, "digest");
	r = manifest_canonical_digest(&found, object);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if (memcmp(&wanted, &found, sizeof(wanted)))
		return brumate_fail(err, EBADMSG, "damaged: its digest does not match");
	return 0;
}

static int decode_root(struct manifest *m, json_t *root, struct brumate_error *err)
{
	int r = check_version(&m->version, root, err);

	if (r == 0)
		r = check_digest(root, err);
	if (r == 0)
		r = decode_object(manifest_fields, manifest_n_fields, (char *)m, root, m->version,
				  err);
	if (r == 0)
		r = manifest_check(m, err);
	return r;
}

int manifest_decode(struct manifest *ret, const char *text, size_t len_bytes,
		    struct brumate_error *err)
{
	json_error_t why;

	if (len_bytes == 0)
		return brumate_fail(err, EBADMSG, "manifest: empty");
	if (len_bytes > MANIFEST_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "manifest: %zu bytes, want at most %d", len_bytes,
				    MANIFEST_BYTES_MAX);

	json_auto_t *root = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, &why);
	if (!root && json_error_code(&why) == json_error_out_of_memory)
		return brumate_fail(err, ENOMEM, "manifest: %m");
	if (!root)
		return brumate_fail(err, EBADMSG, "manifest: damaged or truncated: line %d: %s",
				    why.line, why.text);

	auto_(manifest_fini) struct manifest m = MANIFEST_EMPTY;
	int r = decode_root(&m, root, err);
	if (r < 0)
		return brumate_wrap(err, r, "manifest");
	*ret = m;
	m = MANIFEST_EMPTY;
	return 0;
}
