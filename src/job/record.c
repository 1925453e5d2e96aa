// SPDX-License-Identifier: MIT
/*
 * The record of a job, encoded and decoded. Strings that are not UTF-8 (argv is bytes) are kept as
 * hexadecimal under "hex", because JSON cannot hold them.
 */
#include "job/record.h"

#include <errno.h>
#include <string.h>

#include "base/schema.h"
#include "job/labels.h"

enum { RECORD_VERSION = 1, ARGV_MAX = 1 << 17, STOPPED_MAX = 1 << 22, PID_MAX = 1 << 22 };

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

static const struct schema_field id_fields[] = {
	NUMBER(struct proc_id, "pid", pid, FIELD_INT, 1, PID_MAX),
	NUMBER(struct proc_id, "start", start_ticks, FIELD_U64, 0, INT64_MAX),
};

static const struct schema_field op_fields[] = {
	TEXT(struct job_op, "kind", kind),
	FIELD(struct job_op, "was_suspended", was_suspended, FIELD_BOOL, .lenient = true),
	FIELD(struct job_op, "leave_running", leave_running, FIELD_BOOL, .lenient = true),
	FIELD(struct job_op, "before", before, FIELD_WORD, .max = JOB_STATE__MAX,
	      .words = job_state_names, .lenient = true),
	FIELD(struct job_op, "image", image_path, FIELD_RAW_TEXT,
	      .size = sizeof(((struct job_op *)0)->image_path)),
	PART(struct job_op, "criu", criu, id_fields, .nullable = true),
	FIELD(struct job_op, "together", together, FIELD_RAW_TEXT,
	      .size = sizeof(((struct job_op *)0)->together), .lenient = true),
};

static const struct schema_field stopped_fields[] = {
	NUMBER(struct job_stopped, "pid", id.pid, FIELD_INT, 1, PID_MAX),
	NUMBER(struct job_stopped, "start", id.start_ticks, FIELD_U64, 0, INT64_MAX),
	FIELD(struct job_stopped, "gpu", gpu, FIELD_BOOL, .lenient = true),
	FIELD(struct job_stopped, "goes_first", goes_first, FIELD_BOOL, .lenient = true),
};

/* And what each of its checkpoints is asked for: the options of a request. */
static const struct schema_field schedule_fields[] = {
	NUMBER(struct job_schedule, "every_ms", every_ms, FIELD_U64, JOB_SCHEDULE_MS_MIN,
	       JOB_SCHEDULE_MS_MAX),
	NUMBER(struct job_schedule, "keep_last", keep_last, FIELD_U32, 0, UINT32_MAX,
	       .lenient = true),
	NUMBER(struct job_schedule, "keep_within_ms", keep_within_ms, FIELD_U64, 0, INT64_MAX,
	       .lenient = true),
	NUMBER(struct job_schedule, "next_ms", next_ms, FIELD_U64, 0, INT64_MAX, .lenient = true),
	LINE(struct job_schedule, "failure", failure, .lenient = true),
};

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
	FIELD(struct job, "state", state, FIELD_WORD, .max = JOB_STATE__MAX,
	      .words = job_state_names),
	NUMBER(struct job, "uid", uid, FIELD_U32, 0, UINT32_MAX),
	NUMBER(struct job, "gid", gid, FIELD_U32, 0, UINT32_MAX),
	FIELD(struct job, "simulated", simulated, FIELD_BOOL, .lenient = true),
	TEXT(struct job, "gpu_vendor", vendor, .lenient = true),
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
	LINE(struct job, "message", message),
	LINE(struct job, "started_as", started_as, .nullable = true),
	FIELD(struct job, "argv", argv, FIELD_RAW_ARGV, .max = ARGV_MAX),
	FIELD(struct job, "cwd", cwd, FIELD_RAW, .lenient = true),
	FIELD(struct job, "log", log, FIELD_RAW, .lenient = true),
	FIELD(struct job, "checkpoint", checkpoint, FIELD_RAW, .lenient = true),
	FIELD(struct job, "checkpoint_path", checkpoint_path, FIELD_RAW, .lenient = true),
	LINE(struct job, "ports", ports, .lenient = true),
	NUMBER(struct job, "exit_code", exit_code, FIELD_INT, 0, 255, .nullable = true),
	PART(struct job, "root", root, id_fields, .nullable = true),
	PART(struct job, "command", command, id_fields, .nullable = true),
	PART(struct job, "init", init, id_fields, .nullable = true),
	PART(struct job, "owner", owner, id_fields, .nullable = true),
	PART(struct job, "op", op, op_fields, .nullable = true),
	LIST(struct job, "stopped", stopped, n_stopped, stopped_fields, STOPPED_MAX,
	     .lenient = true),
	PART(struct job, "schedule", schedule, schedule_fields, .nullable = true),
};

static const struct schema_field attribute_fields[] = {
	TEXT(struct job_attributes, "hook", hook, .optional = true),
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

/* ---- what the checkpoints of a schedule are asked for ---- */

static struct schema_field field_of(const struct request_option *o)
{
	static const enum field_kind kinds[] = {
		[REQUEST_FLAG] = FIELD_BOOL,	  [REQUEST_TIME] = FIELD_U32,
		[REQUEST_WORD] = FIELD_LINE,	  [REQUEST_PATH] = FIELD_RAW_TEXT,
		[REQUEST_PLACE] = FIELD_RAW_TEXT,
	};

	/* Older records do not tell all of it. */
	return (struct schema_field){ .name = o->name,
				      .kind = kinds[o->type],
				      .offset = o->offset,
				      .size = o->room,
				      .max = INT32_MAX,
				      .lenient = o->type != REQUEST_PLACE };
}

static int encode_options(json_t *schedule, const struct request *r)
{
	REQUEST_FOR_EACH (o, REQUEST_SCHEDULE) {
		const struct schema_field field = field_of(o);

		if (schema_encode(schedule, &field, 1, r, 0) < 0)
			return -ENOMEM;
	}
	return 0;
}

static int decode_options(struct request *ret, json_t *schedule, struct brumate_error *err)
{
	REQUEST_FOR_EACH (o, REQUEST_SCHEDULE) {
		const struct schema_field field = field_of(o);
		int r = schema_decode(&field, 1, ret, schedule, 0, err);

		if (r < 0)
			return brumate_wrap(err, r, "schedule");
	}
	return 0;
}

/* ---- all of it ---- */

json_t *record_encode(const struct job *j)
{
	auto_json json_t *o = json_pack("{s:i,s:o}", "version", RECORD_VERSION, "labels",
					labels_to_json(j->labels));

	if (!o || schema_encode(o, record_fields, N_OF(record_fields), j, 0) < 0 ||
	    job_attributes_encode(o, &j->attributes) < 0 ||
	    (j->schedule.every_ms &&
	     encode_options(json_object_get(o, "schedule"), &j->schedule.request) < 0))
		return NULL;
	return take_ptr(&o);
}

static int decode_all(struct job *j, json_t *o, struct brumate_error *err)
{
	int r;

	j->exit_code = JOB_EXIT_UNKNOWN;
	j->op.before = JOB_CHECKPOINTED; /* older records do not tell */
	if ((r = schema_decode(record_fields, N_OF(record_fields), j, o, 0, err)) < 0 ||
	    (r = job_attributes_decode(&j->attributes, o, err)) < 0 ||
	    (r = labels_from_json(&j->labels, json_object_get(o, "labels"), err)) < 0)
		return r;
	if (*j->started_as && !job_id_is_valid(j->started_as))
		return brumate_fail(err, EBADMSG, "started_as: not the id of a job");
	if (!*j->op.kind)
		j->op = (struct job_op){ 0 };
	return j->schedule.every_ms
		       ? decode_options(&j->schedule.request, json_object_get(o, "schedule"), err)
		       : 0;
}

/* ---- without decoding all of it ---- */

/* The end of the string that begins at @at, behind its quotation mark; @end: it has none. */
static const char *skip_string(const char *at, const char *end)
{
	for (at++; at < end && *at != '"'; at++)
		at += *at == '\\';
	return at < end ? at + 1 : end;
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static const char *skip_blanks(const char *at, const char *end)
{
	while (at < end && is_blank(*at))
		at++;
	return at;
}

/* Whether what stands at @at, behind a key, is the name of state @state. */
static bool is_state(const char *at, const char *end, enum job_state state)
{
	const char *name = job_state_name(state);
	const size_t len = strlen(name);

	at = skip_blanks(at, end);
	if (at == end || *at != ':')
		return false;
	at = skip_blanks(at + 1, end);
	return (size_t)(end - at) > len + 2 && at[0] == '"' && !memcmp(at + 1, name, len) &&
	       at[len + 1] == '"';
}

bool record_says_ended(const char *text, size_t len_bytes)
{
	static const char key[] = "\"state\"";
	const char *end = text + len_bytes, *at = skip_blanks(text, end);
	bool is_key = false, found = false;
	int depth = 0;

	do {
		const char c = at < end ? *at : '\0',
			   *next = c == '"' ? skip_string(at, end) : at + 1;

		if (!c || (!depth && c != '{'))
			return false;
		if (is_key && depth == 1 && (size_t)(next - at) == strlen(key) &&
		    !memcmp(at, key, strlen(key)))
			found = is_state(next, end, JOB_EXITED) || is_state(next, end, JOB_LOST);
		depth += (c == '{' || c == '[') - (c == '}' || c == ']');
		is_key = c == '{' || c == ',' || (is_key && is_blank(c));
		at = next;
	} while (depth);
	return found && skip_blanks(at, end) == end;
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
	if ((r = decode_all(&j, o, err)) < 0) {
		if (err && r != -ENOMEM)
			err->code = EBADMSG;
		return r == -ENOMEM ? r : -EBADMSG;
	}
	*ret = take_struct(j, JOB_EMPTY);
	return 0;
}
