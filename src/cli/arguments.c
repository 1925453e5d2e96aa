// SPDX-License-Identifier: MIT
/* Parameters from options; see arguments.h. */
#include "cli/arguments.h"
#include "cli/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/digest.h"
#include "base/paths.h"
#include "job/request.h"
#include "chunks/key.h"
#include "wire/wire.h"

static int set(json_t *parameters, const char *key, json_t *value, struct brumate_error *err)
{
	return json_object_set_new(parameters, key, value) < 0 ? brumate_fail(err, ENOMEM, "%m")
							       : 0;
}

int add_string(json_t *parameters, const char *key, const char *value, struct brumate_error *err)
{
	if (!value)
		return 0;

	json_t *string = json_string(value);
	if (!string)
		return brumate_fail(err, EINVAL, "%s: \"%s\" is not UTF-8", key, value);
	return set(parameters, key, string, err);
}

int add_flag(json_t *parameters, const char *key, const struct invocation *in, enum option_id id,
	     struct brumate_error *err)
{
	return in->values[id] ? set(parameters, key, json_true(), err) : 0;
}

int add_pid(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	int64_t pid;

	if (!in->values[OPT_PID])
		return 0;
	int r = parse_pid(&pid, in->values[OPT_PID], err);
	return r < 0 ? r : set(parameters, "pid", json_integer(pid), err);
}

int add_gpu(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	const char *variable = getenv("BRUMATE_GPU");
	const char *kind = in->values[OPT_GPU];

	if (!kind && variable && *variable) {
		if (strcmp(variable, "simulated") && strcmp(variable, "real"))
			return brumate_fail(err, EINVAL, "BRUMATE_GPU=%s: want simulated or real",
					    variable);
		kind = variable;
	}
	return add_string(parameters, "gpu", kind && !strcmp(kind, "real") ? "" : kind, err);
}

char *absolute_path(const char *path)
{
	if (path[0] == '/')
		return strdup(path);

	auto_free char *cwd = getcwd(NULL, 0);
	return cwd ? path_format("%s/%s", cwd, path) : NULL;
}

int add_path(json_t *parameters, const char *key, const char *path, struct brumate_error *err)
{
	if (!path)
		return 0;

	auto_free char *absolute = absolute_path(path);
	if (!absolute)
		return brumate_fail(err, errno, "%s: %m", path);
	return add_string(parameters, key, absolute, err);
}

/* The key is read here, as the user who calls. */
static int add_key(json_t *parameters, const char *key_name, const char *path,
		   struct brumate_error *err)
{
	auto_(seal_key_fini) struct seal_key key = { { 0 } };
	char text[DIGEST_TEXT_BYTES];
	struct digest digits;

	int r = store_key_read(&key, path, err);
	if (r < 0)
		return r;
	memcpy(digits.bytes, key.bytes, sizeof(digits.bytes));
	digest_format(text, &digits);
	r = add_string(parameters, key_name, text, err);
	explicit_bzero(text, sizeof(text));
	explicit_bzero(&digits, sizeof(digits));
	return r;
}

static int add_time(json_t *parameters, const struct request_option *o, const char *value,
		    struct brumate_error *err)
{
	char what[64];
	uint64_t ms;

	snprintf(what, sizeof(what), "--%s", o->word);
	int r = parse_duration(&ms, what, value, err);
	return r < 0 ? r : set(parameters, o->name, json_integer((json_int_t)ms), err);
}

static int add_gpu_map(json_t *parameters, const char *key, const char *value,
		       struct brumate_error *err)
{
	json_t *map;
	int r = parse_gpu_map(&map, value, err);

	return r < 0 ? r : set(parameters, key, map, err);
}

static int add_request_option(json_t *parameters, const struct request_option *o, const char *value,
			      struct brumate_error *err)
{
	switch (o->type) {
	case REQUEST_FLAG:
		return set(parameters, o->name, json_true(), err);
	case REQUEST_TIME:
		return add_time(parameters, o, value, err);
	case REQUEST_GPU_MAP:
		return add_gpu_map(parameters, o->name, value, err);
	case REQUEST_KEY:
		return add_key(parameters, o->name, value, err);
	case REQUEST_PATH:
		return add_path(parameters, o->name, value, err);
	default:
		return add_string(parameters, o->name, value, err);
	}
}

/* What was given for --@word; NULL: nothing, or the command has no such option. */
static const char *value_of(const struct invocation *in, const char *word)
{
	for (const struct option_spec *o = in->command->options; word && o->name; o++)
		if (!strcmp(o->name, word))
			return in->values[o->id];
	return NULL;
}

int add_request(json_t *parameters, const struct invocation *in, unsigned where,
		struct brumate_error *err)
{
	REQUEST_FOR_EACH (o, where) {
		const char *value = value_of(in, o->word);
		int r = value ? add_request_option(parameters, o, value, err) : 0;

		if (r < 0)
			return r;
	}
	return 0;
}

int add_target(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	if ((in->n_operands > 0) == (in->values[OPT_PID] != NULL)) {
		brumate_fail(err, EINVAL, "%s: want either a JOB or --pid PID", in->command->name);
		brumate_hint(err, "`brumate ps` lists the jobs");
		return -EINVAL;
	}
	if (in->n_operands > 0)
		return add_string(parameters, "job", in->operands[0], err);
	return add_pid(parameters, in, err);
}

int add_retention(json_t *parameters, const struct invocation *in, struct brumate_error *err)
{
	uint64_t within_ms;
	int64_t last;
	int r = 0;

	if (in->values[OPT_KEEP_LAST]) {
		r = parse_count(&last, "--keep-last", in->values[OPT_KEEP_LAST], err);
		if (r == 0)
			r = set(parameters, "keep_last", json_integer(last), err);
	}
	if (r < 0 || !in->values[OPT_KEEP_WITHIN])
		return r;
	r = parse_duration(&within_ms, "--keep-within", in->values[OPT_KEEP_WITHIN], err);
	if (r == 0 && within_ms == 0)
		r = brumate_fail(err, EINVAL, "--keep-within: must be positive");
	return r < 0 ? r
		     : set(parameters, "keep_within_ms", json_integer((json_int_t)within_ms), err);
}

json_t *pack_environment(void)
{
	json_t *env = json_array();

	for (char **v = environ; env && *v; v++)
		if (json_array_append_new(env, json_string(*v)) < 0)
			fprintf(stderr, "brumate: %.*s is not passed on: its value is not UTF-8\n",
				(int)strcspn(*v, "="), *v);
	return env;
}

bool wants_json(const struct invocation *in)
{
	return in->values[OPT_FORMAT] && !strcmp(in->values[OPT_FORMAT], "json");
}

int print_json(json_t *o, struct brumate_error *err)
{
	auto_json json_t *all = json_pack("{s:s}", "apiVersion", "brumate/v1");

	if (!all || json_object_update(all, o) < 0 || json_dumpf(all, stdout, JSON_INDENT(2)) < 0)
		return brumate_fail(err, EIO, "cannot print the JSON");
	putchar('\n');
	return 0;
}

int get_kind(const char **ret, const struct invocation *in, struct brumate_error *err)
{
	const char *other = in->values[OPT_CHECKPOINT] ? "--checkpoint"
			    : in->values[OPT_DIR]      ? "--dir"
						       : NULL;

	if (in->values[OPT_JOB] && other)
		return brumate_fail(err, EINVAL, "%s: want either --job or %s", in->command->name,
				    other);
	*ret = in->values[OPT_JOB] ? "job" : in->values[OPT_CHECKPOINT] ? "checkpoint" : NULL;
	return 0;
}
