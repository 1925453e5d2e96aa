// SPDX-License-Identifier: MIT
/* Loops over the tables of schema.h. */
#include "base/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/escape.h"
#include "base/hex.h"

/* The longest duration that is written: beyond it a double loses precision in microseconds. */
#define SECONDS_MAX 1e9

static void free_argv(char **argv)
{
	for (size_t i = 0; argv && argv[i]; i++)
		free(argv[i]);
	free(argv);
}

/* Of a LIST or of ROWS. */
static char *elements_of(const struct schema_field *f, const char *base)
{
	return f->kind == FIELD_ROWS ? (char *)base + f->offset
				     : *(char *const *)(base + f->offset);
}

void schema_free(const struct schema_field *fields, size_t n, void *base_)
{
	char *base = base_;

	for (const struct schema_field *f = fields; f < fields + n; f++) {
		void **pointer = (void **)(base + f->offset);

		switch (f->kind) {
		case FIELD_STRING:
		case FIELD_OPTIONAL:
		case FIELD_RAW:
			free(*pointer);
			break;
		case FIELD_ARGV:
		case FIELD_RAW_ARGV:
			free_argv(*pointer);
			break;
		case FIELD_GROUP:
			schema_free(f->members, f->n_members, base + f->offset);
			break;
		case FIELD_LIST:
		case FIELD_ROWS:
			for (size_t i = 0; i < *(size_t *)(base + f->count_offset); i++)
				schema_free(f->members, f->n_members,
					    elements_of(f, base) + i * f->size);
			if (f->kind == FIELD_LIST)
				free(*pointer);
			break;
		default:
			break;
		}
	}
}

/* ---- encoding ---- */

static json_t *encode_object(const struct schema_field *fields, size_t n, const char *base,
			     int version);
static json_t *encode_field(const struct schema_field *f, const char *base, int version);

static json_t *encode_text(const char *raw, size_t max_bytes)
{
	auto_free char *escaped = text_escape(raw, max_bytes);

	return escaped ? json_string(escaped) : NULL;
}

json_t *schema_encode_line(const char *text)
{
	json_t *json = json_string(text);
	if (json)
		return json;

	auto_free char *ascii = strdup(text);
	if (!ascii)
		return NULL;
	for (char *p = ascii; *p; p++)
		if ((unsigned char)*p >= 0x80)
			*p = '?';
	return json_string(ascii);
}

static json_t *encode_raw(const char *bytes)
{
	if (!bytes)
		return json_null();

	json_t *text = json_string(bytes);
	if (text)
		return text;

	size_t len = strlen(bytes);
	auto_free char *hex = malloc(2 * len + 1);
	if (!hex)
		return NULL;
	hex[0] = '\0'; /* of no bytes, where there was no memory for an empty string */
	for (size_t i = 0; i < len; i++)
		sprintf(hex + 2 * i, "%02x", (unsigned char)bytes[i]);
	return json_pack("{s:s}", "hex", hex);
}

static json_t *encode_argv(const struct schema_field *f, char *const *argv)
{
	json_t *array = json_array();

	for (size_t i = 0; array && argv && argv[i]; i++) {
		json_t *item = f->kind == FIELD_RAW_ARGV ? encode_raw(argv[i])
							 : encode_text(argv[i], SIZE_MAX);

		if (json_array_append_new(array, item) < 0) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

static json_t *encode_list(const struct schema_field *f, const char *base, int version)
{
	size_t n = *(const size_t *)(base + f->count_offset);
	json_t *array = json_array();

	for (size_t i = 0; array && i < n; i++) {
		const char *at = elements_of(f, base) + i * f->size;
		json_t *element = f->members->name
					  ? encode_object(f->members, f->n_members, at, version)
					  : encode_field(f->members, at, version);

		if (json_array_append_new(array, element) < 0) {
			json_decref(array);
			return NULL;
		}
	}
	return array;
}

/* A value out of range becomes -1, which the decoder refuses. */
static json_int_t microseconds(double seconds)
{
	return seconds >= 0 && seconds <= SECONDS_MAX ? llround(seconds * 1e6) : -1;
}

json_t *schema_encode_digest(const struct digest *d)
{
	char text[DIGEST_TEXT_BYTES];

	digest_format(text, d);
	return json_string(text);
}

/* An invalid value becomes null, which the decoder refuses. */
static json_t *encode_word(const struct schema_field *f, unsigned value)
{
	return value < (uint64_t)f->max ? json_string(f->words[value]) : json_null();
}

static json_t *encode_bits(const struct schema_field *f, uint32_t bits)
{
	json_t *array = json_array();

	for (int i = 0; array && i < f->max; i++)
		if (bits & 1u << i && json_array_append_new(array, json_string(f->words[i])) < 0) {
			json_decref(array);
			return NULL;
		}
	return array;
}

static json_t *encode_field(const struct schema_field *f, const char *base, int version)
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
	case FIELD_LINE:
		return schema_encode_line(at);
	case FIELD_RAW:
		return encode_raw(*(char *const *)at);
	case FIELD_RAW_TEXT:
		return encode_raw(at);
	case FIELD_ARGV:
	case FIELD_RAW_ARGV:
		return encode_argv(f, *(char **const *)at);
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
	case FIELD_REAL:
		return json_real(*(const double *)at);
	case FIELD_DIGEST:
		return schema_encode_digest((const struct digest *)at);
	case FIELD_WORD:
		return encode_word(f, *(const unsigned *)at);
	case FIELD_BITS:
		return encode_bits(f, *(const uint32_t *)at);
	case FIELD_GROUP:
		return encode_object(f->members, f->n_members, at, version);
	case FIELD_LIST:
	case FIELD_ROWS:
		return encode_list(f, base, version);
	}
	return NULL;
}

static bool is_left_out(const struct schema_field *f, const char *base)
{
	if (!f->optional)
		return false;
	if (f->given_offset)
		return !base[f->given_offset];
	if (f->kind == FIELD_TEXT || f->kind == FIELD_LINE || f->kind == FIELD_BOOL)
		return !base[f->offset];
	if (f->kind == FIELD_ARGV)
		return !*(char **const *)(base + f->offset) ||
		       !**(char **const *)(base + f->offset);
	return f->kind == FIELD_LIST || f->kind == FIELD_ROWS
		       ? !*(const size_t *)(base + f->count_offset)
		       : !*(const uint64_t *)(base + f->offset);
}

static bool is_empty(const struct schema_field *f, const char *base)
{
	const char *at = base + f->offset;

	switch (f->kind) {
	case FIELD_GROUP:
		return is_empty(f->members, at);
	case FIELD_U64:
		return *(const uint64_t *)at < (uint64_t)f->min;
	case FIELD_INT:
		return *(const int *)at < f->min;
	default:
		return !*at;
	}
}

int schema_encode(json_t *object, const struct schema_field *fields, size_t n, const void *base,
		  int version)
{
	for (const struct schema_field *f = fields; f < fields + n; f++)
		if (f->since <= version && !is_left_out(f, base) &&
		    json_object_set_new(object, f->name,
					f->nullable && is_empty(f, base)
						? json_null()
						: encode_field(f, base, version)) < 0)
			return -ENOMEM;
	return 0;
}

static json_t *encode_object(const struct schema_field *fields, size_t n, const char *base,
			     int version)
{
	json_t *object = json_object();

	if (object && schema_encode(object, fields, n, base, version) < 0) {
		json_decref(object);
		return NULL;
	}
	return object;
}

/* ---- decoding ---- */

static int fail_want(struct brumate_error *err, const char *what)
{
	return brumate_fail(err, EBADMSG, "expected %s", what);
}

static int decode_string(char **ret, json_t *value, size_t max_bytes, struct brumate_error *err)
{
	char *raw;

	if (!json_is_string(value))
		return fail_want(err, "a string");
	int r = text_unescape(&raw, json_string_value(value));
	if (r == -EBADMSG)
		return fail_want(err, "a string whose escapes are \\\\ and \\xNN");
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if (strlen(raw) > max_bytes) {
		free(raw);
		return brumate_fail(err, EBADMSG, "expected at most %zu bytes", max_bytes);
	}
	*ret = raw;
	return 0;
}

static int decode_text(const struct schema_field *f, char *ret, json_t *value,
		       struct brumate_error *err)
{
	auto_free char *raw = NULL;
	int r = decode_string(&raw, value, f->size - 1, err);

	if (r == 0 && f->optional && !*raw)
		return fail_want(err, "a value, or the member left out");
	if (r == 0)
		memcpy(ret, raw, strlen(raw) + 1);
	return r;
}

static int decode_line(const struct schema_field *f, char *ret, const char *text,
		       struct brumate_error *err)
{
	if (!text)
		return fail_want(err, "a string");
	if (strlen(text) >= f->size)
		return brumate_fail(err, EBADMSG, "longer than %zu bytes", f->size - 1);
	strcpy(ret, text);
	return 0;
}

static int decode_hex(char **ret, const char *hex)
{
	size_t len = strlen(hex);
	auto_free char *bytes = calloc(1, len / 2 + 1);

	if (!bytes)
		return -ENOMEM;
	for (size_t i = 0; i < len; i += 2) {
		int high = hex_value(hex[i]), low = hex_value(hex[i + 1]);

		if (high < 0 || low < 0 || high + low == 0)
			return -EBADMSG;
		bytes[i / 2] = (char)(high << 4 | low);
	}
	*ret = take_ptr(&bytes);
	return 0;
}

static int decode_raw(char **ret, json_t *value, struct brumate_error *err)
{
	const char *hex = json_string_value(json_object_get(value, "hex"));
	int r = hex ? decode_hex(ret, hex) : 0;

	if (!hex && !json_is_string(value))
		return fail_want(err, "a string, or its bytes as \"hex\"");
	if (!hex && !(*ret = strdup(json_string_value(value))))
		r = -ENOMEM;
	return r == -EBADMSG ? fail_want(err, "hexadecimal digits")
	       : r < 0	     ? brumate_fail(err, ENOMEM, "%m")
			     : 0;
}

static int decode_raw_text(const struct schema_field *f, char *ret, json_t *value,
			   struct brumate_error *err)
{
	auto_free char *raw = NULL;
	int r = decode_raw(&raw, value, err);

	return r < 0 ? r : decode_line(f, ret, raw, err);
}

static int decode_argv(const struct schema_field *f, char ***ret, json_t *value,
		       struct brumate_error *err)
{
	if (!json_is_array(value) || (int64_t)json_array_size(value) > f->max)
		return brumate_fail(err, EBADMSG,
				    "expected an array of at most %" PRId64 " strings", f->max);

	size_t n = json_array_size(value);
	*ret = calloc(n + 1, sizeof(**ret));
	if (!*ret)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		json_t *item = json_array_get(value, i);
		int r = f->kind == FIELD_RAW_ARGV
				? decode_raw(&(*ret)[i], item, err)
				: decode_string(&(*ret)[i], item, SCHEMA_ARGUMENT_BYTES_MAX, err);

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
		return brumate_fail(err, EBADMSG,
				    "expected an integer from %" PRId64 " to %" PRId64, min, max);
	*ret = n;
	return 0;
}

static int decode_number(const struct schema_field *f, char *at, json_t *value,
			 struct brumate_error *err)
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
	int r = decode_integer(&us, value, 0, (int64_t)(SECONDS_MAX * 1e6), err);

	if (r == 0)
		*ret = (double)us / 1e6;
	return r;
}

int schema_decode_digest(struct digest *ret, json_t *value, struct brumate_error *err)
{
	const char *text = json_string_value(value);

	return text && digest_parse(ret, text) == 0
		       ? 0
		       : fail_want(err, "64 lower-case hexadecimal digits");
}

static int decode_word(const struct schema_field *f, unsigned *ret, json_t *value,
		       struct brumate_error *err)
{
	const char *text = json_string_value(value);

	for (unsigned i = 0; text && i < (uint64_t)f->max; i++) {
		if (!strcmp(text, f->words[i])) {
			*ret = i;
			return 0;
		}
	}
	if (text && f->min) {
		*ret = (unsigned)f->min;
		return 0;
	}
	return text ? brumate_fail(err, EBADMSG, "\"%s\" is no word that this version knows", text)
		    : fail_want(err, "a word");
}

static int decode_bits(const struct schema_field *f, uint32_t *ret, json_t *value,
		       struct brumate_error *err)
{
	json_t *word;
	size_t i;

	if (!json_is_array(value))
		return fail_want(err, "an array of words");
	json_array_foreach (value, i, word)
		for (int k = 0; k < f->max; k++)
			if (json_is_string(word) && !strcmp(json_string_value(word), f->words[k]))
				*ret |= 1u << k;
	return 0;
}

static int decode_field(const struct schema_field *f, char *base, json_t *value, int version,
			struct brumate_error *err);

static int decode_list(const struct schema_field *f, char *base, json_t *value, int version,
		       struct brumate_error *err)
{
	size_t *count = (size_t *)(base + f->count_offset);

	if (!json_is_array(value) || (int64_t)json_array_size(value) > f->max)
		return brumate_fail(err, EBADMSG, "expected an array of at most %" PRId64 " items",
				    f->max);

	size_t n = json_array_size(value);
	if (n == 0)
		return 0;
	if (f->kind == FIELD_LIST && !(*(char **)(base + f->offset) = calloc(n, f->size)))
		return brumate_fail(err, ENOMEM, "%m");
	*count = n;
	for (size_t i = 0; i < n; i++) {
		char *at = elements_of(f, base) + i * f->size;
		json_t *item = json_array_get(value, i);
		int r = f->members->name
				? schema_decode(f->members, f->n_members, at, item, version, err)
				: decode_field(f->members, at, item, version, err);

		if (r < 0)
			return brumate_wrap(err, r, "item %zu", i);
	}
	return 0;
}

static int decode_field(const struct schema_field *f, char *base, json_t *value, int version,
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
	case FIELD_LINE:
		return decode_line(f, at, json_string_value(value), err);
	case FIELD_RAW:
		return json_is_null(value) ? 0 : decode_raw((char **)at, value, err);
	case FIELD_RAW_TEXT:
		return decode_raw_text(f, at, value, err);
	case FIELD_ARGV:
	case FIELD_RAW_ARGV:
		return decode_argv(f, (char ***)at, value, err);
	case FIELD_U64:
	case FIELD_U32:
	case FIELD_INT:
		return decode_number(f, at, value, err);
	case FIELD_BOOL:
		if (!json_is_boolean(value))
			return fail_want(err, "true or false");
		*(bool *)at = json_is_true(value);
		return 0;
	case FIELD_SECONDS:
		return decode_seconds((double *)at, value, err);
	case FIELD_REAL:
		if (!json_is_number(value))
			return fail_want(err, "a number");
		*(double *)at = json_number_value(value);
		return 0;
	case FIELD_BITS:
		return decode_bits(f, (uint32_t *)at, value, err);
	case FIELD_DIGEST:
		return schema_decode_digest((struct digest *)at, value, err);
	case FIELD_WORD:
		return decode_word(f, (unsigned *)at, value, err);
	case FIELD_GROUP:
		return schema_decode(f->members, f->n_members, at, value, version, err);
	case FIELD_LIST:
	case FIELD_ROWS:
		return decode_list(f, base, value, version, err);
	}
	return -EBADMSG;
}

int schema_decode(const struct schema_field *fields, size_t n, void *base, json_t *object,
		  int version, struct brumate_error *err)
{
	if (!json_is_object(object))
		return fail_want(err, "an object");

	for (const struct schema_field *f = fields; f < fields + n; f++) {
		json_t *value = json_object_get(object, f->name);

		if (f->since > version || (f->optional && !value) ||
		    ((f->lenient || f->nullable) && (!value || json_is_null(value))))
			continue;
		if (!value)
			return brumate_fail(err, EBADMSG, "%s is missing", f->name);
		int r = decode_field(f, base, value, version, err);
		if (r < 0)
			return brumate_wrap(err, r, "%s", f->name);
		if (f->given_offset)
			*((bool *)base + f->given_offset) = true;
	}
	return 0;
}
