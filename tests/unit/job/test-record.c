// SPDX-License-Identifier: MIT
/* The record of a job: what is encoded comes back the same, and whatever is wrong is named. */
#include "job/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "sanitized.h"

#define NOT_UTF8 "caf\xe9 \xff\xfe"

static char *copy(const char *text)
{
	char *s = strdup(text);

	CHECK(s);
	return s;
}

/* Every field differs from its empty value, and from every other of its kind. */
static struct job full_job(void)
{
	struct job j = {
		.id = "0123abcd",
		.name = "train-0123",
		.state = JOB_CHECKPOINTING,
		.created = "2026-01-02T03:04:05.678Z",
		.uid = 4294967294u,
		.gid = 3000000000u,
		.gpu_kind = { .vendor = "other", .simulated = true },
		.by_pid = true,
		.restored = true,
		.started_as = "0badcafe",
		.data_path = JOB_DATA_BROKER,
		.parked = true,
		.root = { 4711, 99887766554433ull },
		.command = { 4712, 99887766554434ull },
		.init = { 4710, 99887766554400ull },
		.owner = { 4700, 99887766554300ull },
		.boot_id = "5ca3f9d2-0d3b-4d9b-8c49-4f57a5a5d5a6",
		.pid_ns = 4026531836,
		.exit_code = 143,
		.message = "checkpoint: " NOT_UTF8,
		.ports = "127.0.0.1:8000 [::1]:8000",
		.n_gpus = 2,
		.n_stopped = 2,
		.sequence = 1767323045678ull,
		.attributes = { .priority = -7 },
		.op = { .kind = "checkpoint",
			.was_suspended = true,
			.leave_running = true,
			.before = JOB_EXITED,
			.image_path = "/var/lib/x/" NOT_UTF8,
			.criu = { 4800, 99887766559999ull } },
		.schedule = { .every_ms = 600000,
			      .keep_last = 4000000000u,
			      .keep_within_ms = 86400000,
			      .request = { .timeout_ms = 30000,
					   .force = true,
					   .keep_copy = true,
					   .compress = "zstd",
					   .dir = "/data/" NOT_UTF8 },
			      .next_ms = 1767323045678ull,
			      .failure = "no room on /data" },
	};

	j.argv = calloc(5, sizeof(*j.argv));
	j.gpus = calloc(2, sizeof(*j.gpus));
	j.labels = calloc(3, sizeof(*j.labels));
	j.stopped = calloc(2, sizeof(*j.stopped));
	CHECK(j.argv && j.gpus && j.labels && j.stopped);
	j.stopped[0] = (struct job_stopped){ { 4713, 99887766554435ull }, true, true };
	j.stopped[1] = (struct job_stopped){ { 4714, 99887766554436ull }, false, true };
	j.labels[0] = copy("gpus=two = 2");
	j.labels[1] = copy("team=");
	j.argv[0] = copy("python3");
	j.argv[1] = copy(NOT_UTF8);
	j.argv[2] = copy("");
	j.argv[3] = copy("tab\there \"quoted\" \xc3\xa9\n");
	j.cwd = copy("/home/" NOT_UTF8);
	j.log = copy("/var/log/brumate/0123abcd.log");
	j.checkpoint = copy("train-0123-1");
	j.checkpoint_path = copy("/data/" NOT_UTF8);
	j.gpus[0] = (struct job_gpu){ "GPU-0", "NVIDIA H200", 17179869184ull };
	j.gpus[1] = (struct job_gpu){ "GPU-1", "NVIDIA H200 NVL", 0 };
	return j;
}

static json_t *encoded(const struct job *j)
{
	json_t *o = record_encode(j);

	CHECK(o);
	return o;
}

/* Decodes a copy that ends where the text ends, so that a sanitizer sees a step beyond it. */
static int decode(struct job *ret, const char *text, size_t len, struct brumate_error *err)
{
	char *exact = malloc(len ? len : 1);

	CHECK(exact);
	memcpy(exact, text, len);
	*err = BRUMATE_ERROR_NONE;
	int r = record_decode(ret, exact, len, err);
	free(exact);
	return r;
}

static int decode_object(struct job *ret, const json_t *o, struct brumate_error *err)
{
	char *text = json_dumps(o, 0);

	CHECK(text);
	int r = decode(ret, text, strlen(text), err);
	free(text);
	return r;
}

static void check_same_text(const char *got, const char *want)
{
	CHECK(!got == !want);
	if (want)
		CHECK_STR(got, want);
}

static void check_same_processes(const struct job *got, const struct job *want)
{
	CHECK(got->root.pid == want->root.pid && got->root.start_ticks == want->root.start_ticks);
	CHECK(got->command.pid == want->command.pid);
	CHECK(got->command.start_ticks == want->command.start_ticks);
	CHECK(got->init.pid == want->init.pid && got->init.start_ticks == want->init.start_ticks);
	CHECK(proc_is_same(got->owner, want->owner));
	CHECK_STR(got->boot_id, want->boot_id);
	CHECK(got->pid_ns == want->pid_ns);
	CHECK(got->op.criu.pid == want->op.criu.pid);
	CHECK(got->op.criu.start_ticks == want->op.criu.start_ticks);
}

static void check_same_lists(const struct job *got, const struct job *want)
{
	size_t n = 0;

	for (; want->argv && want->argv[n]; n++)
		CHECK_STR(got->argv[n], want->argv[n]);
	CHECK(!got->argv[n]);
	CHECK(got->attributes.priority == want->attributes.priority);
	CHECK(!got->labels == !want->labels);
	for (n = 0; want->labels && want->labels[n]; n++)
		CHECK_STR(got->labels[n], want->labels[n]);
	CHECK(!got->labels || !got->labels[n]);
	CHECK(got->n_gpus == want->n_gpus);
	for (size_t i = 0; i < want->n_gpus; i++) {
		CHECK_STR(got->gpus[i].uuid, want->gpus[i].uuid);
		CHECK_STR(got->gpus[i].name, want->gpus[i].name);
		CHECK(got->gpus[i].bytes == want->gpus[i].bytes);
	}
}

static void check_same_stopped(const struct job *got, const struct job *want)
{
	CHECK(got->n_stopped == want->n_stopped);
	for (size_t i = 0; i < want->n_stopped; i++) {
		const struct job_stopped *one = &got->stopped[i], *other = &want->stopped[i];

		CHECK(proc_is_same(one->id, other->id));
		CHECK(one->gpu == other->gpu && one->goes_first == other->goes_first);
	}
}

static void check_same_schedule(const struct job_schedule *got, const struct job_schedule *want)
{
	CHECK(got->every_ms == want->every_ms && got->next_ms == want->next_ms);
	CHECK(got->keep_last == want->keep_last && got->keep_within_ms == want->keep_within_ms);
	CHECK(got->request.timeout_ms == want->request.timeout_ms);
	CHECK(got->request.force == want->request.force);
	CHECK(got->request.keep_copy == want->request.keep_copy);
	CHECK(got->request.rehearse == want->request.rehearse);
	CHECK_STR(got->failure, want->failure);
	CHECK_STR(got->request.dir, want->request.dir);
	CHECK_STR(got->request.compress, want->request.compress);
	CHECK_STR(got->request.key_file, want->request.key_file);
}

static void check_same(const struct job *got, const struct job *want)
{
	CHECK_STR(got->id, want->id);
	CHECK_STR(got->name, want->name);
	CHECK(!got->dir);
	CHECK(got->state == want->state);
	CHECK_STR(got->created, want->created);
	CHECK(got->uid == want->uid && got->gid == want->gid);
	check_same_text(got->cwd, want->cwd);
	check_same_text(got->log, want->log);
	CHECK_STR(got->vendor, want->vendor);
	CHECK(got->simulated == want->simulated && got->by_pid == want->by_pid);
	CHECK(got->restored == want->restored);
	CHECK_STR(got->started_as, want->started_as);
	CHECK(got->data_path == want->data_path && got->parked == want->parked);
	CHECK(got->exit_code == want->exit_code && got->sequence == want->sequence);
	check_same_text(got->checkpoint, want->checkpoint);
	check_same_text(got->checkpoint_path, want->checkpoint_path);
	CHECK_STR(got->op.kind, want->op.kind);
	CHECK(got->op.was_suspended == want->op.was_suspended);
	CHECK(got->op.leave_running == want->op.leave_running);
	CHECK(got->op.before == want->op.before);
	CHECK_STR(got->op.image_path, want->op.image_path);
	check_same_processes(got, want);
	check_same_lists(got, want);
	check_same_stopped(got, want);
	check_same_schedule(&got->schedule, &want->schedule);
}

static void round_trip(const struct job *want, const char *message)
{
	auto_json json_t *o = encoded(want);
	auto_(job_fini) struct job got = JOB_EMPTY;
	struct brumate_error err;

	if (decode_object(&got, o, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	CHECK(!err.code);
	check_same(&got, want);
	CHECK_STR(got.message, message);
	CHECK_STR(got.ports, want->ports);
}

static void test_round_trips(void)
{
	auto_(job_fini) struct job full = full_job();
	struct job empty = {
		.id = "00000000", .name = "j", .state = JOB_CREATED, .exit_code = JOB_EXIT_UNKNOWN
	};

	/* The message is for people, so there what is not UTF-8 may be replaced. */
	round_trip(&full, "checkpoint: caf? ??");
	round_trip(&empty, "");
	for (int state = 0; state < JOB_STATE__MAX; state++) {
		empty.state = (enum job_state)state;
		round_trip(&empty, "");
	}
}

/* A message that was cut in the middle of a character must not keep the record from being written. */
static void test_cut_message(void)
{
	struct job j = { .id = "00000000", .name = "j" };
	char want[JOB_MESSAGE_BYTES];

	memset(j.message, 'x', sizeof(j.message) - 1);
	memcpy(want, j.message, sizeof(want));
	j.message[sizeof(j.message) - 2] = '\xc3';
	want[sizeof(want) - 2] = '?';
	round_trip(&j, want);
}

/* ---- members ---- */

struct member {
	const char *path; /* "op.kind", "gpus.uuid" */
	bool needed;
};

static const struct member members[] = {
	{ "version", true },
	{ "id", true },
	{ "name", true },
	{ "state", true },
	{ "created", true },
	{ "uid", true },
	{ "gid", true },
	{ "argv", true },
	{ "cwd", false },
	{ "log", false },
	{ "simulated", false },
	{ "gpu_vendor", false },
	{ "by_pid", false },
	{ "restored", false },
	{ "data_path", false },
	{ "parked", false },
	{ "kept_bytes", false },
	{ "sequence", false },
	{ "root", false },
	{ "started_as", false },
	{ "command", false },
	{ "init", false },
	{ "owner", false },
	{ "boot_id", true },
	{ "pid_ns", false },
	{ "exit_code", false },
	{ "checkpoint", false },
	{ "message", true },
	{ "ports", false },
	{ "gpus", false },
	{ "checkpoint_path", false },
	{ "op", false },
	{ "op.kind", true },
	{ "op.was_suspended", false },
	{ "op.image", true },
	{ "op.criu", false },
	{ "op.leave_running", false },
	{ "op.before", false },
	{ "root.pid", true },
	{ "root.start", true },
	{ "command.pid", true },
	{ "command.start", true },
	{ "init.pid", true },
	{ "gpus.uuid", true },
	{ "gpus.name", true },
	{ "gpus.bytes", false },
	{ "stopped", false },
	{ "stopped.pid", true },
	{ "stopped.start", true },
	{ "stopped.gpu", false },
	{ "stopped.goes_first", false },
	{ "schedule", false },
	{ "schedule.every_ms", true },
	{ "schedule.keep_last", false },
	{ "schedule.keep_within_ms", false },
	{ "schedule.timeout_ms", false },
	{ "schedule.force", false },
	{ "schedule.keep_copy", false },
	{ "schedule.rehearse", false },
	{ "schedule.compress", false },
	{ "schedule.key_file", false },
	{ "schedule.dir", true },
	{ "schedule.next_ms", false },
	{ "schedule.failure", false },
	{ "labels", false },
	{ "priority", false },
};

/* The object that holds the member, and its key there. */
static json_t *holder(json_t *o, const char *path, const char **ret_key)
{
	const char *dot = strchr(path, '.');
	char first[32];

	*ret_key = dot ? dot + 1 : path;
	if (!dot)
		return o;
	snprintf(first, sizeof(first), "%.*s", (int)(dot - path), path);
	json_t *inner = json_object_get(o, first);
	return json_is_array(inner) ? json_array_get(inner, 0) : inner;
}

static void check_refused(json_t *o, const char *name)
{
	struct job untouched = JOB_EMPTY;
	struct brumate_error err;
	int r = decode_object(&untouched, o, &err);

	if (r != -EBADMSG || !strstr(err.text, name))
		fprintf(stderr, "%s: %d \"%s\"\n", name, r, err.text);
	CHECK(r == -EBADMSG && err.code == EBADMSG);
	CHECK(strstr(err.text, name));
	CHECK(!memcmp(&untouched, &JOB_EMPTY, sizeof(untouched)));
}

static void test_each_missing(void)
{
	auto_(job_fini) struct job full = full_job();

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
		auto_json json_t *o = encoded(&full);
		auto_(job_fini) struct job got = JOB_EMPTY;
		struct brumate_error err;
		const char *key;
		json_t *in = holder(o, members[i].path, &key);

		CHECK(json_object_get(in, key));
		json_object_del(in, key);
		if (members[i].needed)
			check_refused(o, key);
		else
			CHECK(decode_object(&got, o, &err) == 0);
	}
}

static void test_each_mistyped(void)
{
	auto_(job_fini) struct job full = full_job();

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++) {
		auto_json json_t *o = encoded(&full);
		const char *key;
		json_t *in = holder(o, members[i].path, &key);
		bool is_bool = json_is_boolean(json_object_get(in, key));

		json_object_set_new(in, key, is_bool ? json_string("yes") : json_true());
		check_refused(o, key);
	}
}

/* Every member that record_encode() writes is in the table above. */
static void test_table_is_whole(void)
{
	auto_(job_fini) struct job full = full_job();
	auto_json json_t *o = encoded(&full);
	size_t n = 0;

	for (size_t i = 0; i < sizeof(members) / sizeof(members[0]); i++)
		n += !strchr(members[i].path, '.');
	CHECK(json_object_size(o) == n);
}

/* ---- values ---- */

struct value {
	const char *path, *json, *names;
};

static const struct value bad_values[] = {
	{ "version", "2", "version 2, expected 1" },
	{ "id", "\"0123456789abcdef\"", "id" },
	{ "state", "\"dancing\"", "dancing" },
	{ "started_as", "\"../badcafe\"", "started_as" },
	{ "uid", "-1", "uid" },
	{ "gid", "4294967296", "gid" },
	{ "exit_code", "256", "exit_code" },
	{ "exit_code", "-1", "exit_code" },
	{ "argv", "[null]", "argv: item 0" },
	{ "argv", "[\"a\", 1]", "argv: item 1" },
	{ "argv", "[{\"hex\": \"4\"}]", "argv" },
	{ "argv", "[{\"hex\": \"4g\"}]", "argv" },
	{ "argv", "[{\"hex\": \"-1\"}]", "argv" },
	{ "argv", "[{\"hex\": \"4100\"}]", "argv" },
	{ "argv", "[{\"hex\": 41}]", "argv" },
	{ "argv", "{}", "argv" },
	{ "root.pid", "0", "root" },
	{ "root.pid", "-4", "root" },
	{ "root.pid", "4194305", "root" },
	{ "root.start", "-1", "root" },
	{ "command.pid", "0", "command" },
	{ "gpus.bytes", "-1", "gpus" },
	{ "gpus", "[1]", "gpus" },
	{ "op.kind", "\"a kind that is too long\"", "kind" },
	{ "schedule.compress", "\"too long\"", "compress: longer than 7 bytes" },
	{ "schedule.timeout_ms", "2147483648", "timeout_ms" },
	{ "schedule.failure", "1", "failure" },
	{ "labels", "[]", "labels" },
	{ "priority", "1001", "priority" },
	{ "labels.team", "1", "labels: team" },
	{ "labels.team", "\"two\\nlines\"", "label" },
};

static void test_bad_values(void)
{
	auto_(job_fini) struct job full = full_job();

	for (size_t i = 0; i < sizeof(bad_values) / sizeof(bad_values[0]); i++) {
		auto_json json_t *o = encoded(&full);
		const char *key;
		json_t *in = holder(o, bad_values[i].path, &key);
		json_t *value = json_loads(bad_values[i].json, JSON_DECODE_ANY, NULL);

		CHECK(value);
		json_object_set_new(in, key, value);
		check_refused(o, bad_values[i].names);
	}
}

static void test_too_many_gpus(void)
{
	auto_(job_fini) struct job full = full_job();
	auto_json json_t *o = encoded(&full);
	json_t *gpus = json_object_get(o, "gpus");

	while (json_array_size(gpus) <= MANIFEST_GPUS_MAX)
		json_array_append(gpus, json_array_get(gpus, 0));
	check_refused(o, "gpus: expected an array of at most 64");
}

static void test_long_strings(void)
{
	enum { LEN = 1 << 20 };
	auto_(job_fini) struct job full = full_job();

	free(full.argv[1]);
	full.argv[1] = malloc(LEN + 1);
	CHECK(full.argv[1]);
	memset(full.argv[1], 0xe9, LEN);
	full.argv[1][LEN] = '\0';
	round_trip(&full, "checkpoint: caf? ??");
}

/* ---- bytes ---- */

static void test_truncated(void)
{
	auto_(job_fini) struct job full = full_job();
	auto_json json_t *o = encoded(&full);
	auto_free char *text = json_dumps(o, JSON_INDENT(1));
	struct job untouched = JOB_EMPTY;
	struct brumate_error err;

	CHECK(text);
	for (size_t len = 0; len < strlen(text); len++) {
		CHECK(decode(&untouched, text, len, &err) == -EBADMSG);
		CHECK(err.text[0]);
		CHECK(!memcmp(&untouched, &JOB_EMPTY, sizeof(untouched)));
	}
}

static void test_foreign(void)
{
	static const char *const texts[] = {
		"",
		"{}",
		"[]",
		"null",
		"\"job\"",
		"1",
		"{\"version\": 1}",
		"{\"version\": 1, \"version\": 1}",
		"{\"version\": 1, \"id\": \"0123abcd\"} x",
		"{\"format\": \"other\", \"jobs\": [1, 2, 3]}",
		"\xff\xfe{\0}",
	};
	struct brumate_error err;

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct job untouched = JOB_EMPTY;

		CHECK(decode(&untouched, texts[i], strlen(texts[i]), &err) == -EBADMSG);
		CHECK(err.code == EBADMSG && err.text[0]);
		CHECK(record_decode(&untouched, texts[i], strlen(texts[i]), NULL) == -EBADMSG);
		CHECK(!memcmp(&untouched, &JOB_EMPTY, sizeof(untouched)));
	}
}

static bool says_ended(const char *text)
{
	const size_t len = strlen(text);
	char *exact = malloc(len ? len : 1);

	CHECK(exact);
	memcpy(exact, text, len);
	const bool r = record_says_ended(exact, len);
	free(exact);
	return r;
}

/* What only looks like an end hides no job. */
static void test_ended_at_sight(void)
{
	static const char *const others[] = {
		"",
		"{}",
		"\"state\": \"exited\"",
		"{\"labels\": {\"state\": \"exited\"}, \"state\": \"running\"}",
		"{\"state\": \"running\", \"labels\": {\"state\": \"exited\"}}",
		"{\"argv\": [\"state\", \"exited\", \"\\\"state\\\": \\\"exited\\\"\"]}",
		"{\"name\": \"state\", \"exited\": 1}",
		"{\"state\": \"exitedly\"}",
		"{\"state\": \"checkpointed\"}",
		"{\"state\": \"exited\"",
		"{\"state\": \"exited",
		"{\"state\": \"exited\"} {",
		"{\"state\"",
		"{\"\\",
	};
	struct job job = full_job();

	for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		CHECK(!says_ended(others[i]));
	CHECK(says_ended("{\"labels\": {\"state\": \"running\"}, \"state\" :\n\"exited\"}\n"));
	for (job.state = 0; job.state < JOB_STATE__MAX; job.state++) {
		auto_json json_t *o = encoded(&job);
		auto_free char *text = json_dumps(o, job.state % 2 ? JSON_COMPACT : JSON_INDENT(2));

		CHECK(text &&
		      says_ended(text) == (job.state == JOB_EXITED || job.state == JOB_LOST));
	}
	job_fini(&job);
}

/* A sanitizer has memory of its own to interpose. */
#if !SANITIZED && defined(__GLIBC__)
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
__attribute__((visibility("default"))) void *malloc(size_t size); /* jansson's, too */
__attribute__((visibility("default"))) void *calloc(size_t n, size_t size);
static long left_until_lack; /* of calls for memory; 0: none fails */

static bool lacks_memory(void)
{
	if (!left_until_lack || --left_until_lack)
		return false;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t size)
{
	return lacks_memory() ? NULL : __libc_malloc(size);
}

void *calloc(size_t n, size_t size)
{
	return lacks_memory() ? NULL : __libc_calloc(n, size);
}

/* Whatever there is no memory for, the record is not taken for damaged. */
static void test_without_memory(void)
{
	struct job job = full_job();
	auto_json json_t *o = record_encode(&job);
	auto_free char *text = json_dumps(o, 0);
	bool lacked = true;
	long n;

	/* There is some that jansson can do without. */
	for (n = 1; lacked; n++) {
		auto_(job_fini) struct job back = JOB_EMPTY;
		struct brumate_error err = BRUMATE_ERROR_NONE;

		left_until_lack = n;
		int r = record_decode(&back, text, strlen(text), &err);
		lacked = !left_until_lack;
		left_until_lack = 0;
		CHECK(r == 0 || (r == -ENOMEM && err.code == ENOMEM));
	}
	CHECK(n > 20);
	job_fini(&job);
}

/* A record of which a part would be missing is not written. */
static void test_encoded_without_memory(void)
{
	auto_(job_fini) struct job job = full_job();
	auto_json json_t *o = NULL;
	long n;

	for (n = 1;; n++) {
		auto_(job_fini) struct job back = JOB_EMPTY;
		struct brumate_error err;

		json_decref(o);
		left_until_lack = n;
		o = record_encode(&job);
		const bool lacked = !left_until_lack;
		left_until_lack = 0;
		if (o)
			CHECK(decode_object(&back, o, &err) == 0);
		if (o)
			check_same(&back, &job);
		if (o && !lacked)
			break;
	}
	CHECK(n > 20);
}
#else
static void test_encoded_without_memory(void)
{
}

static void test_without_memory(void)
{
}
#endif

int main(void)
{
	test_round_trips();
	test_cut_message();
	test_table_is_whole();
	test_each_missing();
	test_each_mistyped();
	test_bad_values();
	test_too_many_gpus();
	test_long_strings();
	test_truncated();
	test_foreign();
	test_ended_at_sight();
	test_without_memory();
	test_encoded_without_memory();
	return 0;
}
