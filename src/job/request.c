// SPDX-License-Identifier: MIT
/* The table of options, and what is done by it; see request.h. */
#include "job/request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/broker-answers.h"
#include "wire/wire.h"

#define SUSPEND	   REQUEST_SUSPEND
#define RESUME	   REQUEST_RESUME
#define CHECKPOINT REQUEST_CHECKPOINT
#define RESTORE	   REQUEST_RESTORE
#define SCHEDULE   REQUEST_SCHEDULE
#define REHEARSE   REQUEST_REHEARSE
#define ALL	   (SUSPEND | RESUME | CHECKPOINT | RESTORE | SCHEDULE)

#define AT(member)   offsetof(struct request, member), sizeof(((struct request *)NULL)->member)
#define CONF(member) (ssize_t) offsetof(struct brumate_conf, member)

static const struct request_option request_options[] = {
	{ "timeout_ms", "timeout", REQUEST_TIME, ALL | REHEARSE, AT(timeout_ms), CONF(timeout_ms) },
	{ "wait_ms", "wait", REQUEST_TIME, SUSPEND | RESUME | CHECKPOINT | RESTORE, AT(wait_ms),
	  -1 },
	{ "gpu_map", "gpu-map", REQUEST_GPU_MAP, RESUME | RESTORE, AT(pairs), -1 },
	{ "tcp_close", "tcp-close", REQUEST_FLAG, CHECKPOINT | RESTORE | SCHEDULE | REHEARSE,
	  AT(tcp_close), CONF(tcp_close) },
	{ "force", "force", REQUEST_FLAG, (ALL & ~RESUME) | REHEARSE, AT(force), -1 },
	{ "dry_run", "dry-run", REQUEST_FLAG, SUSPEND | CHECKPOINT, AT(dry_run), -1 },
	{ "leave_running", "leave-running", REQUEST_FLAG, CHECKPOINT, AT(leave_running), -1 },
	{ "cpu_runs", "cpu-runs", REQUEST_FLAG, SUSPEND, AT(cpu_runs), -1 },
	{ "park", "park", REQUEST_FLAG, SUSPEND, AT(park), -1 },
	{ "keep_copy", "keep-copy", REQUEST_FLAG, RESUME | CHECKPOINT | SCHEDULE, AT(keep_copy),
	  CONF(keep_copy) },
	{ "tcp_skip_in_flight", "tcp-skip-in-flight", REQUEST_FLAG, CHECKPOINT | SCHEDULE,
	  AT(tcp_skip_in_flight), -1 },
	{ "drop_external", "drop-external", REQUEST_FLAG, CHECKPOINT | SCHEDULE, AT(drop_external),
	  -1 },
	{ "with_files", "with-files", REQUEST_FLAG, CHECKPOINT | SCHEDULE, AT(with_files), -1 },
	{ "rehearse", "rehearse", REQUEST_FLAG, CHECKPOINT | SCHEDULE, AT(rehearse), -1 },
	{ "wake", "wake", REQUEST_FLAG, CHECKPOINT, AT(wake), -1 },
	{ "keep_files", "keep-files", REQUEST_FLAG, RESTORE, AT(keep_files), -1 },
	{ "room_of", NULL, REQUEST_OURS, RESUME, AT(room_of), -1 },
	{ "together", NULL, REQUEST_PATH, CHECKPOINT | RESTORE, AT(together), -1 },
	{ "id", NULL, REQUEST_PLACE, CHECKPOINT, AT(id), -1 },
	{ "dir", NULL, REQUEST_PLACE, CHECKPOINT | SCHEDULE, AT(dir), -1 },
	{ "compress", "compress", REQUEST_WORD, CHECKPOINT | SCHEDULE, AT(compress),
	  CONF(compress) },
	{ "key", "key-file", REQUEST_KEY, CHECKPOINT | RESTORE | REHEARSE | REQUEST_READ, AT(key),
	  -1 },
	{ "allow_unauthenticated", "allow-unauthenticated", REQUEST_FLAG,
	  RESTORE | REHEARSE | REQUEST_READ, AT(allow_unauthenticated),
	  CONF(allow_unauthenticated) },
	{ "key_file", "key-file", REQUEST_PATH, SCHEDULE, AT(key_file), -1 },
};

const struct request_option *request_next_option(const struct request_option *o, unsigned where)
{
	const struct request_option *end =
		request_options + sizeof(request_options) / sizeof(request_options[0]);

	o = o ? o + 1 : request_options;
	while (o < end && !(o->where & where))
		o++;
	return o < end ? o : NULL;
}

void request_fini(struct request *r)
{
	free(r->pairs);
	r->pairs = NULL;
	r->n_pairs = 0;
	store_key_fini(&r->key);
}

enum chunks_compress request_compress(const struct request *r)
{
	enum chunks_compress how = CHUNKS_COMPRESS_AUTO;

	chunks_parse_compress(&how, r->compress);
	return how;
}

/* ---- parameters ---- */

static int check_word(json_t *parameters, const char *name, struct brumate_error *err)
{
	enum chunks_compress how;
	const char *word;
	int r = wire_get_string(parameters, name, &word, err);

	if (r < 0 || !word || chunks_parse_compress(&how, word) == 0)
		return r;
	return wire_fail_parameter(err, name, "expected auto, none, lz4 or zstd");
}

static int check_option(const struct request_option *o, json_t *parameters,
			struct brumate_error *err)
{
	const char *text;
	json_t *list;
	int64_t ms;
	bool flag;

	switch (o->type) {
	case REQUEST_FLAG:
		return wire_get_bool(parameters, o->name, &flag, err);
	case REQUEST_TIME:
		return wire_get_int(parameters, o->name, 0, INT32_MAX, &ms, err);
	case REQUEST_GPU_MAP:
		return wire_get_array(parameters, o->name, &list, err);
	case REQUEST_WORD:
		return check_word(parameters, o->name, err);
	case REQUEST_PLACE:
		return wire_need_string(parameters, o->name, &text, err);
	default:
		return wire_get_string(parameters, o->name, &text, err);
	}
}

static bool is_of_service(const struct request_option *o)
{
	return o->type == REQUEST_PLACE || o->type == REQUEST_OURS;
}

int request_check(json_t *parameters, unsigned where, struct brumate_error *err)
{
	REQUEST_FOR_EACH (o, where) {
		int r = is_of_service(o) ? 0 : check_option(o, parameters, err);

		if (r < 0)
			return r;
	}
	return 0;
}

json_t *request_pick(json_t *parameters, unsigned where)
{
	auto_json json_t *picked = json_object();

	REQUEST_FOR_EACH (o, where) {
		json_t *value = json_object_get(parameters, o->name);

		if (!value || json_is_null(value) || is_of_service(o))
			continue;
		if (json_object_set(picked, o->name, value) < 0)
			return NULL;
	}
	return take_ptr(&picked);
}

static int decode_text(char *ret, const struct request_option *o, const char *text,
		       struct brumate_error *err)
{
	if (strlen(text) >= o->room)
		return wire_fail_parameter(err, o->name, "is too long");
	strcpy(ret, text);
	return 0;
}

static const struct schema_field pairs_field =
	LIST(struct request, "gpu_map", pairs, n_pairs, broker_pair_fields, DEV_GPUS_MAX);

static int decode_key(struct store_key *ret, char *text, struct brumate_error *err)
{
	int r = store_key_parse(ret, "given", text, strlen(text), err);

	explicit_bzero(text, strlen(text));
	return r;
}

/* Its value has been checked. */
static int decode_option(struct request *ret, const struct request_option *o, json_t *parameters,
			 struct brumate_error *err)
{
	json_t *value = json_object_get(parameters, o->name);
	void *at = request_at(ret, o);

	switch (o->type) {
	case REQUEST_FLAG:
		*(bool *)at = json_is_true(value);
		return 0;
	case REQUEST_TIME:
		*(uint32_t *)at = (uint32_t)json_integer_value(value);
		return 0;
	case REQUEST_GPU_MAP:
		return wire_get_field(parameters, &pairs_field, ret, err);
	case REQUEST_KEY:
		return decode_key(at, (char *)json_string_value(value), err);
	default:
		return decode_text(at, o, json_string_value(value), err);
	}
}

int request_decode(struct request *ret, unsigned where, json_t *parameters,
		   struct brumate_error *err)
{
	REQUEST_FOR_EACH (o, where) {
		json_t *value = json_object_get(parameters, o->name);
		int r = check_option(o, parameters, err);

		if (r == 0 && value && !json_is_null(value))
			r = decode_option(ret, o, parameters, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- what is not given ---- */

static uint32_t capped_ms(const void *conf_ms)
{
	uint64_t ms = *(const uint64_t *)conf_ms;

	return ms < INT32_MAX ? (uint32_t)ms : INT32_MAX;
}

static const char *compress_word(const enum conf_compress *how)
{
	return chunks_compress_word((enum chunks_compress) * how);
}

/* What @conf says of @o, as a parameter (owned). NULL: it says what a shim does if the parameter is missing. */
static json_t *option_default(const struct request_option *o, const struct brumate_conf *conf)
{
	const void *from = (const char *)conf + o->conf;

	switch (o->type) {
	case REQUEST_FLAG:
		return *(const bool *)from ? json_true() : NULL;
	case REQUEST_TIME:
		return capped_ms(from) ? json_integer(capped_ms(from)) : NULL;
	default:
		return json_string(compress_word(from));
	}
}

int request_add_defaults(json_t *picked, unsigned where, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int r = conf_load(&conf, err);

	if (r < 0)
		return r;
	REQUEST_FOR_EACH (o, where) {
		bool wanted = o->conf >= 0 && !json_object_get(picked, o->name);
		json_t *value = wanted ? option_default(o, &conf) : NULL;

		if (value && json_object_set_new(picked, o->name, value) < 0)
			return brumate_fail(err, ENOMEM, "%m");
	}
	return 0;
}

void request_configure(struct request *r, unsigned where, const struct brumate_conf *conf)
{
	REQUEST_FOR_EACH (o, where) {
		const void *from = (const char *)conf + o->conf;
		void *at = request_at(r, o);

		if (o->conf < 0)
			continue;
		if (o->type == REQUEST_FLAG)
			*(bool *)at = *(bool *)at || *(const bool *)from;
		else if (o->type == REQUEST_TIME && !*(uint32_t *)at)
			*(uint32_t *)at = capped_ms(from);
		else if (o->type == REQUEST_WORD && !*(char *)at)
			strcpy(at, compress_word(from));
	}
}
