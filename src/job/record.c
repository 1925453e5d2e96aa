// SPDX-License-Identifier: MIT
/*
 * The record of a job, encoded and decoded. Strings that are not UTF-8 (argv is bytes) are kept as
 * hexadecimal under "hex", because JSON cannot hold them.
 */
#include "job/record.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hex.h"
#include "base/schema.h"
#include "job/labels.h"

enum { RECORD_VERSION = 1, ARGV_MAX = 1 << 17, STOPPED_MAX = 1 << 22 };

void job_fini(struct job *j)
{
	for (char **arg = j->argv; arg && *arg; arg++)
		free(*arg);
	free(j->argv);
	labels_free(j->labels);
	free(j->cwd);
	target_fini(&j->target);
	*j = JOB_EMPTY;
}

bool job_id_is_valid(const char *id)
{
	return strlen(id) == 8 && strspn(id, "0123456789abcdef") == 8;
}

/* ---- what tables say ---- */

static const struct schema_field gpu_fields[] = {
	TEXT(struct job_gpu, "uuid", uuid),
	TEXT(struct job_gpu, "name", name),
	NUMBER(struct job_gpu, "bytes", bytes, FIELD_U64, 0, INT64_MAX, .lenient = true),
};

static const struct schema_field record_fields[] = {
	TEXT(struct job, "id", id),
	TEXT(struct job, "name", name),
	TEXT(struct job, "created", created),
	TEXT(struct job, "boot_id", boot_id),
	LIST(struct job, "gpus", gpus, n_gpus, gpu_fields, MANIFEST_GPUS_MAX, .lenient = true),
	FIELD(struct job, "state", state, FIELD_WORD, .max = JOB_STATE__MAX, .words = job_state_names),
	NUMBER(struct job, "uid", uid, FIELD_U32, 0, UINT32_MAX),
	NUMBER(struct job, "gid", gid, FIELD_U32, 0, UINT32_MAX),
	FIELD(struct job, "simulated", simulated, FIELD_BOOL, .lenient = true),
	FIELD(struct job, "by_pid", by_pid, FIELD_BOOL, .lenient = true),
	FIELD(struct job, "restored", restored, FIELD_BOOL, .lenient = true),
	/* Older records have no data path: it was the driver's. */
	FIELD(struct job, "data_path", data_path, FIELD_WORD, .max = JOB_DATA_PATH__MAX,
	      .words = job_data_path_names, .lenient = true),
	FIELD(struct job, "parked", parked, FIELD_BOOL, .lenient = true),
	NUMBER(struct job, "kept_bytes", kept_bytes, FIELD_U64, 0, INT64_MAX, .lenient = true),
	NUMBER(struct job, "pid_ns", pid_ns, FIELD_U64, 0, INT64_MAX, .lenient = true),
	NUMBER(struct job, "sequence", sequence, FIELD_U64, 0, MANIFEST_SEQUENCE_MAX,
	       .lenient = true),
};

static const struct schema_field attribute_fields[] = {
	NUMBER(struct job_attributes, "priority", priority, FIELD_INT, JOB_PRIORITY_MIN,
	       JOB_PRIORITY_MAX, .lenient = true),
};

int job_attributes_encode(json_t *o, const struct job_attributes *a)
{
	return schema_encode(o, attribute_fields, N_OF(attribute_fields), a, 0);
}

int job_attributes_decode(struct job_attributes *ret, json_t *o, struct brumate_error *err)
{
	return schema_decode(attribute_fields, N_OF(attribute_fields), ret, o, 0, err);
}

/* ---- bytes that may not be UTF-8 ---- */

static json_t *encode_bytes(const char *bytes)
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

static int decode_bytes(char **ret, json_t *v)
{
	if (!v || json_is_null(v)) {
		*ret = NULL;
		return 0;
	}
	if (json_is_string(v)) {
		*ret = strdup(json_string_value(v));
		return *ret ? 0 : -ENOMEM;
	}

	const char *hex = json_string_value(json_object_get(v, "hex"));
	size_t len = hex ? strlen(hex) : 1;
	if (len % 2)
		return -EBADMSG;
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

static json_t *encode_argv(char *const *argv)
{
	auto_json json_t *list = json_array();

	for (; list && argv && *argv; argv++)
		if (json_array_append_new(list, encode_bytes(*argv)) < 0)
			return NULL;
	return take_ptr(&list);
}

static json_t *encode_id(struct proc_id id)
{
	if (!id.pid)
		return json_null();
	return json_pack("{s:i,s:I}", "pid", id.pid, "start", (json_int_t)id.start_ticks);
}

static json_t *encode_op(const struct job_op *op)
{
	if (!op->kind[0])
		return json_null();
	return json_pack("{s:s,s:b,s:b,s:s,s:o,s:o}", "kind", op->kind, "was_suspended",
			 op->was_suspended, "leave_running", op->leave_running, "before",
			 job_state_name(op->before), "image", encode_bytes(op->image_path), "criu",
			 encode_id(op->criu));
}

static json_t *encode_stopped(const struct job *j)
{
	auto_json json_t *list = json_array();

	for (size_t i = 0; list && i < j->n_stopped; i++) {
		const struct job_stopped *s = &j->stopped[i];

		if (json_array_append_new(list,
					  json_pack("{s:i,s:I,s:b,s:b}", "pid", s->id.pid, "start",
						    (json_int_t)s->id.start_ticks, "gpu", s->gpu,
						    "goes_first", s->goes_first)) < 0)
			return NULL;
	}
	return take_ptr(&list);
}

static json_t *encode_option(const struct request *r, const struct request_option *o)
{
	const void *at = request_at(r, o);

	switch (o->type) {
	case REQUEST_FLAG:
		return json_boolean(*(const bool *)at);
	case REQUEST_TIME:
		return json_integer(*(const uint32_t *)at);
	case REQUEST_WORD:
		return json_string(at);
	default:
		return encode_bytes(at);
	}
}

static json_t *encode_schedule(const struct job_schedule *s)
{
	if (!s->every_ms)
		return json_null();
	auto_json json_t *o = json_pack("{s:I,s:I,s:I}", "every_ms", (json_int_t)s->every_ms,
					"keep_last", (json_int_t)s->keep_last, "keep_within_ms",
					(json_int_t)s->keep_within_ms);
	REQUEST_FOR_EACH (option, REQUEST_SCHEDULE)
		if (json_object_set_new(o, option->name, encode_option(&s->request, option)) < 0)
			return NULL;
	if (json_object_set_new(o, "next_ms", json_integer((json_int_t)s->next_ms)) < 0 ||
	    json_object_set_new(o, "failure", wire_string(s->failure)) < 0)
		return NULL;
	return take_ptr(&o);
}

json_t *record_encode(const struct job *j)
{
	json_t *exit_code =
		j->exit_code == JOB_EXIT_UNKNOWN ? json_null() : json_integer(j->exit_code);
	auto_json json_t *o = json_pack("{s:i}", "version", RECORD_VERSION);
	auto_json json_t *rest = json_pack(
		"{s:o,s:o,s:o,s:s?,s:o,s:o,s:o,s:o,s:o,s:s?,s:o,s:o,s:o,s:o,s:o,s:o}", "argv",
		encode_argv(j->argv), "cwd", encode_bytes(j->cwd), "log", encode_bytes(j->log),
		"started_as", j->started_as[0] ? j->started_as : NULL, "root", encode_id(j->root),
		"command", encode_id(j->command), "init", encode_id(j->init), "owner",
		encode_id(j->owner), "exit_code", exit_code, "checkpoint", j->checkpoint,
		"checkpoint_path", encode_bytes(j->checkpoint_path), "message",
		wire_string(j->message), "op", encode_op(&j->op), "schedule",
		encode_schedule(&j->schedule), "labels", labels_to_json(j->labels), "stopped",
		encode_stopped(j));

	if (!o || !rest || schema_encode(o, record_fields, N_OF(record_fields), j, 0) < 0 ||
	    job_attributes_encode(o, &j->attributes) < 0 || json_object_update(o, rest) < 0)
		return NULL;
	return take_ptr(&o);
}

/* ---- decoding ---- */

static int decode_text(char *ret, size_t room, json_t *o, const char *key,
		       struct brumate_error *err)
{
	const char *text;
	int r = wire_need_string(o, key, &text, err);

	if (r < 0)
		return r;
	if (strlen(text) >= room)
		return brumate_fail(err, EBADMSG, "%s: longer than %zu bytes", key, room - 1);
	strcpy(ret, text);
	return 0;
}

/* Like decode_text(), for a text that may not be UTF-8. */
static int decode_path(char *ret, size_t room, json_t *o, const char *key,
		       struct brumate_error *err)
{
	auto_free char *path = NULL;

	int r = decode_bytes(&path, json_object_get(o, key));

	if (r == -ENOMEM)
		return brumate_fail(err, ENOMEM, "%s: %m", key);
	if (r < 0 || !path)
		return brumate_fail(err, EBADMSG, "%s: not a path", key);
	if (strlen(path) >= room)
		return brumate_fail(err, EBADMSG, "%s: longer than %zu bytes", key, room - 1);
	strcpy(ret, path);
	return 0;
}

static int decode_state(enum job_state *ret, json_t *o, const char *key, struct brumate_error *err)
{
	char name[32];
	int r = decode_text(name, sizeof(name), o, key, err);

	if (r < 0)
		return r;
	for (int i = 0; i < JOB_STATE__MAX; i++)
		if (!strcmp(name, job_state_name((enum job_state)i))) {
			*ret = (enum job_state)i;
			return 0;
		}
	return brumate_fail(err, EBADMSG, "%s: unknown \"%s\"", key, name);
}

static int decode_identity(struct proc_id *ret, json_t *id, const char *key,
			   struct brumate_error *err)
{
	int64_t pid = 0, start = -1;
	int r;

	if ((r = wire_get_int(id, "pid", 1, 1 << 22, &pid, err)) < 0 ||
	    (r = wire_get_int(id, "start", 0, INT64_MAX, &start, err)) < 0)
		return brumate_wrap(err, r, "%s", key);
	if (!pid || start < 0)
		return brumate_fail(err, EBADMSG, "%s: expected pid and start", key);
	*ret = (struct proc_id){ (pid_t)pid, (uint64_t)start };
	return 0;
}

static int decode_id(struct proc_id *ret, json_t *o, const char *key, struct brumate_error *err)
{
	json_t *id;
	int r = wire_get_object(o, key, &id, err);

	return r < 0 || !id ? r : decode_identity(ret, id, key, err);
}

static int decode_argv(char ***ret, json_t *list, struct brumate_error *err)
{
	size_t n = json_array_size(list);

	if (!json_is_array(list) || n > ARGV_MAX)
		return brumate_fail(err, EBADMSG, "argv: not a list of arguments");
	*ret = calloc(n + 1, sizeof(**ret));
	if (!*ret)
		return brumate_fail(err, ENOMEM, "argv: %m");
	for (size_t i = 0; i < n; i++) {
		int r = decode_bytes(&(*ret)[i], json_array_get(list, i));

		if (r == -ENOMEM)
			return brumate_fail(err, ENOMEM, "argv: %m");
		if (r < 0 || !(*ret)[i])
			return brumate_fail(err, EBADMSG, "argv: item %zu", i);
	}
	return 0;
}

static int decode_op(struct job_op *ret, json_t *o, struct brumate_error *err)
{
	json_t *op;
	int r = wire_get_object(o, "op", &op, err);

	if (r < 0 || !op)
		return r;
	ret->before = JOB_CHECKPOINTED; /* older records do not tell */
	if (json_object_get(op, "before") &&
	    (r = decode_state(&ret->before, op, "before", err)) < 0)
		return brumate_wrap(err, r, "op");
	if ((r = decode_text(ret->kind, sizeof(ret->kind), op, "kind", err)) < 0 ||
	    (r = decode_path(ret->image_path, sizeof(ret->image_path), op, "image", err)) < 0 ||
	    (r = wire_get_bool(op, "was_suspended", &ret->was_suspended, err)) < 0 ||
	    (r = wire_get_bool(op, "leave_running", &ret->leave_running, err)) < 0 ||
	    (r = decode_id(&ret->criu, op, "criu", err)) < 0)
		return brumate_wrap(err, r, "op");
	return 0;
}

static int decode_option(struct request *ret, const struct request_option *o, json_t *s,
			 struct brumate_error *err)
{
	void *at = request_at(ret, o);
	int64_t ms = 0;
	int r;

	switch (o->type) {
	case REQUEST_FLAG:
		return wire_get_bool(s, o->name, at, err);
	case REQUEST_TIME:
		r = wire_get_int(s, o->name, 0, INT32_MAX, &ms, err);
		*(uint32_t *)at = (uint32_t)ms;
		return r;
	case REQUEST_WORD:
		return decode_text(at, o->room, s, o->name, err);
	default:
		return decode_path(at, o->room, s, o->name, err);
	}
}

/* How its checkpoints are made; older records do not tell all of it. */
static int decode_request(struct request *ret, json_t *s, struct brumate_error *err)
{
	REQUEST_FOR_EACH (o, REQUEST_SCHEDULE) {
		bool told = o->type == REQUEST_PLACE || json_object_get(s, o->name);
		int r = told ? decode_option(ret, o, s, err) : 0;

		if (r < 0)
			return r;
	}
	return 0;
}

/* Older records have no schedule, or do not tell whether it failed. */
static int decode_schedule(struct job_schedule *ret, json_t *o, struct brumate_error *err)
{
	json_t *s;
	int64_t every_ms = 0, last = 0, within_ms = 0, next_ms = 0;
	int r = wire_get_object(o, "schedule", &s, err);

	if (r < 0 || !s)
		return r;
	if ((r = wire_get_int(s, "every_ms", JOB_SCHEDULE_MS_MIN, JOB_SCHEDULE_MS_MAX, &every_ms,
			      err)) < 0 ||
	    (r = wire_get_int(s, "keep_last", 0, UINT32_MAX, &last, err)) < 0 ||
	    (r = wire_get_int(s, "keep_within_ms", 0, INT64_MAX, &within_ms, err)) < 0 ||
	    (r = wire_get_int(s, "next_ms", 0, INT64_MAX, &next_ms, err)) < 0 ||
	    (r = decode_request(&ret->request, s, err)) < 0)
		return brumate_wrap(err, r, "schedule");
	if (json_object_get(s, "failure") &&
	    (r = decode_text(ret->failure, sizeof(ret->failure), s, "failure", err)) < 0)
		return brumate_wrap(err, r, "schedule");
	if (!every_ms)
		return brumate_fail(err, EBADMSG, "schedule: every_ms is missing");
	ret->every_ms = (uint64_t)every_ms;
	ret->keep_last = (unsigned)last;
	ret->keep_within_ms = (uint64_t)within_ms;
	ret->next_ms = (uint64_t)next_ms;
	return 0;
}

/* Of older records none stands still. */
static int decode_stopped(struct job *j, json_t *o, struct brumate_error *err)
{
	json_t *list = NULL;
	int r = wire_get_array(o, "stopped", &list, err);
	size_t n = json_array_size(list);

	if (r < 0 || !n)
		return r;
	if (n > STOPPED_MAX)
		return brumate_fail(err, EBADMSG, "stopped: %zu", n);
	j->stopped = calloc(n, sizeof(*j->stopped));
	if (!j->stopped)
		return brumate_fail(err, ENOMEM, "stopped: %m");
	j->n_stopped = n;
	for (size_t i = 0; i < n; i++) {
		json_t *one = json_array_get(list, i);
		struct job_stopped *s = &j->stopped[i];

		if (!json_is_object(one))
			return brumate_fail(err, EBADMSG, "stopped: not a list of processes");
		if ((r = decode_identity(&s->id, one, "stopped", err)) < 0 ||
		    (r = wire_get_bool(one, "gpu", &s->gpu, err)) < 0 ||
		    (r = wire_get_bool(one, "goes_first", &s->goes_first, err)) < 0)
			return r;
	}
	return 0;
}

static int decode_exit_code(struct job *j, json_t *o, struct brumate_error *err)
{
	int64_t exit_code = JOB_EXIT_UNKNOWN;
	int r = wire_get_int(o, "exit_code", 0, 255, &exit_code, err);

	j->exit_code = (int)exit_code;
	return r;
}

static int decode_strings(struct job *j, json_t *o, struct brumate_error *err)
{
	const char *checkpoint, *started_as;
	int r;

	if ((r = decode_text(j->message, sizeof(j->message), o, "message", err)) < 0 ||
	    (r = wire_get_string(o, "checkpoint", &checkpoint, err)) < 0 ||
	    (r = wire_get_string(o, "started_as", &started_as, err)) < 0)
		return r;
	if (started_as && !job_id_is_valid(started_as))
		return brumate_fail(err, EBADMSG, "started_as: not the id of a job");
	snprintf(j->started_as, sizeof(j->started_as), "%s", started_as ? started_as : "");
	if (checkpoint && !(j->checkpoint = strdup(checkpoint)))
		return brumate_fail(err, ENOMEM, "checkpoint: %m");
	if ((r = decode_bytes(&j->cwd, json_object_get(o, "cwd"))) < 0 ||
	    (r = decode_bytes(&j->log, json_object_get(o, "log"))) < 0 ||
	    (r = decode_bytes(&j->checkpoint_path, json_object_get(o, "checkpoint_path"))) < 0)
		return r == -ENOMEM ? brumate_fail(err, ENOMEM, "cwd, log, checkpoint_path: %m")
				    : brumate_fail(err, EBADMSG,
						   "cwd, log, checkpoint_path: not a string");
	return decode_argv(&j->argv, json_object_get(o, "argv"), err);
}

int record_decode(struct job *ret, const char *text, size_t len_bytes, struct brumate_error *err)
{
	auto_json json_t *o = NULL;
	auto_(job_fini) struct job j = JOB_EMPTY;
	int64_t version = 0;
	int r;

	if ((r = wire_decode(&o, text, len_bytes, err)) < 0)
		return r;
	if ((r = wire_get_int(o, "version", 0, INT32_MAX, &version, err)) < 0 ||
	    version != RECORD_VERSION)
		return brumate_fail(err, EBADMSG, "version %lld, expected %d", (long long)version,
				    RECORD_VERSION);
	if ((r = schema_decode(record_fields, N_OF(record_fields), &j, o, 0, err)) < 0 ||
	    (r = job_attributes_decode(&j.attributes, o, err)) < 0 ||
	    (r = decode_strings(&j, o, err)) < 0 || (r = decode_exit_code(&j, o, err)) < 0 ||
	    (r = decode_id(&j.root, o, "root", err)) < 0 ||
	    (r = decode_id(&j.command, o, "command", err)) < 0 ||
	    (r = decode_id(&j.init, o, "init", err)) < 0 ||
	    (r = decode_id(&j.owner, o, "owner", err)) < 0 || (r = decode_op(&j.op, o, err)) < 0 ||
	    (r = decode_stopped(&j, o, err)) < 0 ||
	    (r = decode_schedule(&j.schedule, o, err)) < 0 ||
	    (r = labels_from_json(&j.labels, json_object_get(o, "labels"), err)) < 0) {
		if (err && r != -ENOMEM)
			err->code = EBADMSG;
		return r == -ENOMEM ? r : -EBADMSG;
	}
	*ret = take_struct(j, JOB_EMPTY);
	return 0;
}
