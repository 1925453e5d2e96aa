// SPDX-License-Identifier: MIT
/* Reading the parameters of a call: each getter checks the type and names what is wrong. */
#include "wire/wire.h"

#include <errno.h>
#include <stdio.h>

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
