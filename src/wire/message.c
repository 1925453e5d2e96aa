// SPDX-License-Identifier: MIT
/*
 * The content of a message: decodes one frame, reads the parameters of a call, converts errors to JSON and back.
 * Pure: no I/O. Its input is untrusted.
 */
#include "wire/wire.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

void wire_message_fini(struct wire_message *m)
{
	json_decref(m->json);
	for (size_t i = 0; i < m->n_fds; i++)
		if (m->fds[i] >= 0)
			close(m->fds[i]);
	*m = WIRE_MESSAGE_EMPTY;
}

int wire_decode(json_t **ret_json, const char *text, size_t len_bytes, struct brumate_error *err)
{
	if (len_bytes > WIRE_MESSAGE_BYTES_MAX)
		return brumate_fail(err, EBADMSG, "message: %zu bytes, more than %d", len_bytes,
				    WIRE_MESSAGE_BYTES_MAX);

	json_error_t problem;
	errno = 0; /* when jansson runs out of memory it reports an invalid string; errno tells the two apart */
	auto_json json_t *json =
		json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);

	if (!json && errno == ENOMEM)
		return brumate_fail(err, ENOMEM, "message: %m");
	if (!json)
		return brumate_fail(err, EBADMSG, "message: byte %d: %s", problem.position,
				    problem.text);
	if (!json_is_object(json))
		return brumate_fail(err, EBADMSG, "message: not a JSON object");
	*ret_json = take_ptr(&json);
	return 0;
}

const char *text_of(const json_t *o, const char *key)
{
	const char *text = json_string_value(json_object_get(o, key));

	return text ? text : "";
}

json_t *wire_string(const char *text)
{
	return schema_encode_line(text);
}

json_t *wire_error_to_json(const struct brumate_error *err)
{
	return json_pack("{s:i, s:i, s:o, s:o}", "code", err->code, "exit",
			 (int)brumate_exit_code(err), "text", wire_string(err->text), "hint",
			 wire_string(err->hint));
}

static int bounded_int(json_t *o, const char *key, int min, int max, int fallback)
{
	json_int_t v = json_integer_value(json_object_get(o, key));

	return v >= min && v <= max ? (int)v : fallback;
}

void wire_error_from_json(struct brumate_error *ret, json_t *o)
{
	const char *text = json_string_value(json_object_get(o, "text"));
	const char *hint = json_string_value(json_object_get(o, "hint"));

	brumate_fail(ret, bounded_int(o, "code", 1, 4095, EPROTO), "%s",
		     text && *text ? text : "the peer failed and gave no reason");
	ret->exit_code = bounded_int(o, "exit", 1, 255, 0);
	if (hint)
		brumate_hint(ret, "%s", hint);
}

/* ---- parameters: each getter checks the type and names what is wrong ---- */

int wire_fail_parameter(struct brumate_error *err, const char *parameter, const char *why)
{
	brumate_fail(err, EINVAL, "parameter '%s': %s", parameter, why);
	if (err)
		snprintf(err->parameter, sizeof(err->parameter), "%s", parameter);
	return -EINVAL;
}

/* The member @key of @o, NULL if it is missing or null. */
static json_t *member(json_t *o, const char *key)
{
	json_t *v = json_object_get(o, key);

	return json_is_null(v) ? NULL : v;
}

int wire_get_string(json_t *o, const char *key, const char **ret, struct brumate_error *err)
{
	json_t *v = member(o, key);

	if (v && !json_is_string(v))
		return wire_fail_parameter(err, key, "must be a string");
	*ret = json_string_value(v);
	return 0;
}

int wire_need_string(json_t *o, const char *key, const char **ret, struct brumate_error *err)
{
	if (!member(o, key))
		return wire_fail_parameter(err, key, "is missing");
	return wire_get_string(o, key, ret, err);
}

int wire_get_int(json_t *o, const char *key, int64_t min, int64_t max, int64_t *ret,
		 struct brumate_error *err)
{
	json_t *v = member(o, key);

	if (!v)
		return 0;
	if (!json_is_integer(v))
		return wire_fail_parameter(err, key, "must be an integer");

	int64_t n = json_integer_value(v);
	if (n < min || n > max) {
		char why[96];

		snprintf(why, sizeof(why), "%lld is not between %lld and %lld", (long long)n,
			 (long long)min, (long long)max);
		return wire_fail_parameter(err, key, why);
	}
	*ret = n;
	return 0;
}

int wire_get_bool(json_t *o, const char *key, bool *ret, struct brumate_error *err)
{
	json_t *v = member(o, key);

	if (!v)
		return 0;
	if (!json_is_boolean(v))
		return wire_fail_parameter(err, key, "must be true or false");
	*ret = json_is_true(v);
	return 0;
}

int wire_get_array(json_t *o, const char *key, json_t **ret, struct brumate_error *err)
{
	json_t *v = member(o, key);

	if (v && !json_is_array(v))
		return wire_fail_parameter(err, key, "must be an array");
	*ret = v;
	return 0;
}

int wire_get_object(json_t *o, const char *key, json_t **ret, struct brumate_error *err)
{
	json_t *v = member(o, key);

	if (v && !json_is_object(v))
		return wire_fail_parameter(err, key, "must be an object");
	*ret = v;
	return 0;
}

int wire_get_field(json_t *o, const struct schema_field *field, void *base,
		   struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	const int r = member(o, field->name) ? schema_decode(field, 1, base, o, 0, &why) : 0;

	if (r == -EBADMSG) /* "NAME: expected ..." */
		return wire_fail_parameter(err, field->name,
					   why.text + strlen(field->name) + strlen(": "));
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}
