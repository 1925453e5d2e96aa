// SPDX-License-Identifier: MIT
/* The options of operations: which are checked, passed on and read for what, and their defaults. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "job/request.h"
#include "wire/wire.h"

#define ANY                                                                        \
	(REQUEST_SUSPEND | REQUEST_RESUME | REQUEST_CHECKPOINT | REQUEST_RESTORE | \
	 REQUEST_SCHEDULE | REQUEST_READ | REQUEST_REHEARSE)
#define HEX64 "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static json_t *parse(const char *text)
{
	json_t *o = json_loads(text, 0, NULL);

	CHECK(o);
	return o;
}

/* ---- the table ---- */

static void test_table(void)
{
	REQUEST_FOR_EACH (o, ANY) {
		CHECK(o->where && !(o->where & ~(unsigned)ANY));
		CHECK(o->offset + o->room <= sizeof(struct request));
		if (o->type == REQUEST_FLAG)
			CHECK(o->room == sizeof(bool));
		if (o->type == REQUEST_TIME)
			CHECK(o->room == sizeof(uint32_t));
		/* A set's is given by our own program. */
		CHECK((o->type == REQUEST_PLACE || o->type == REQUEST_OURS ||
		       !strcmp(o->name, "together")) == !o->word);
	}
}

/* The names, in order; options that are for nothing else are not among them. */
static void test_options_of_each(void)
{
	static const struct {
		unsigned where;
		const char *names;
	} want[] = {
		{ REQUEST_SUSPEND, "timeout_ms wait_ms force dry_run cpu_runs park " },
		{ REQUEST_RESUME, "timeout_ms wait_ms gpu_map keep_copy room_of " },
		{ REQUEST_CHECKPOINT,
		  "timeout_ms wait_ms tcp_close force dry_run leave_running keep_copy "
		  "tcp_skip_in_flight drop_external with_files rehearse wake together id dir "
		  "compress "
		  "key " },
		{ REQUEST_RESTORE,
		  "timeout_ms wait_ms gpu_map tcp_close force keep_files together key "
		  "allow_unauthenticated " },
		{ REQUEST_READ, "key allow_unauthenticated " },
		{ REQUEST_REHEARSE, "timeout_ms tcp_close force key allow_unauthenticated " },
		{ REQUEST_SCHEDULE, "timeout_ms tcp_close force keep_copy tcp_skip_in_flight "
				    "drop_external with_files rehearse dir compress key_file " },
	};

	for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
		char names[256] = "";

		REQUEST_FOR_EACH (o, want[i].where)
			snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s ",
				 o->name);
		CHECK_STR(names, want[i].names);
	}
}

/* ---- checking and passing on ---- */

static void test_check(void)
{
	static const struct {
		unsigned where;
		const char *json, *error; /* NULL: fine */
	} cases[] = {
		{ REQUEST_SUSPEND, "{}", NULL },
		{ REQUEST_SUSPEND, "{\"force\": null, \"timeout_ms\": null}", NULL },
		{ REQUEST_SUSPEND, "{\"force\": 1}", "parameter 'force': must be true or false" },
		{ REQUEST_SUSPEND, "{\"timeout_ms\": -1}",
		  "parameter 'timeout_ms': -1 is not between 0 and 2147483647" },
		{ REQUEST_SUSPEND, "{\"timeout_ms\": \"5s\"}",
		  "parameter 'timeout_ms': must be an integer" },
		{ REQUEST_RESUME, "{\"gpu_map\": {}}", "parameter 'gpu_map': must be an array" },
		{ REQUEST_CHECKPOINT, "{\"compress\": \"best\"}",
		  "parameter 'compress': expected auto, none, lz4 or zstd" },
		{ REQUEST_CHECKPOINT, "{\"key\": 5}", "parameter 'key': must be a string" },
		{ REQUEST_CHECKPOINT, "{\"compress\": \"zstd\", \"rehearse\": true}", NULL },
		{ REQUEST_SCHEDULE, "{\"key_file\": []}",
		  "parameter 'key_file': must be a string" },
		{ REQUEST_RESTORE, "{\"tcp_close\": \"no\"}",
		  "parameter 'tcp_close': must be true or false" },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		auto_json json_t *o = parse(cases[i].json);
		struct brumate_error err = BRUMATE_ERROR_NONE;
		int r = request_check(o, cases[i].where, &err);

		CHECK(r == (cases[i].error ? -EINVAL : 0));
		if (cases[i].error)
			CHECK_STR(err.text, cases[i].error);
	}
}

/* A caller's id and dir never pass: those are the service's to choose. */
static void test_pick(void)
{
	auto_json json_t *o =
		parse("{\"rehearse\": true, \"force\": null, \"timeout_ms\": 7, \"id\": "
		      "\"../x\", \"dir\": \"/etc\", \"keep_files\": true, "
		      "\"job\": \"a\", \"keep_copy\": false}");
	auto_json json_t *picked = request_pick(o, REQUEST_CHECKPOINT);
	auto_json json_t *want =
		parse("{\"timeout_ms\": 7, \"rehearse\": true, \"keep_copy\": false}");

	CHECK(json_equal(picked, want));
	auto_json json_t *resume = parse("{\"room_of\": \"0123abcd\"}");
	auto_json json_t *nothing = request_pick(resume, REQUEST_RESUME);
	CHECK(json_object_size(nothing) == 0);
}

/* ---- reading ---- */

static void test_decode(void)
{
	auto_json json_t *o =
		parse("{\"timeout_ms\": 1500, \"force\": true, \"id\": \"a-1\", "
		      "\"dir\": \"/s\", \"compress\": \"lz4\", \"key\": \"" HEX64 "\", "
		      "\"park\": true}");
	auto_(request_fini) struct request r = { 0 };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(request_decode(&r, REQUEST_CHECKPOINT, o, &err) == 0);
	CHECK(r.timeout_ms == 1500 && r.force && !r.rehearse && !r.leave_running);
	CHECK(!r.park); /* which is not for a checkpoint */
	CHECK_STR(r.id, "a-1");
	CHECK_STR(r.dir, "/s");
	CHECK(request_compress(&r) == CHUNKS_COMPRESS_LZ4);
	CHECK(*r.key.id);
	CHECK_STR(json_string_value(json_object_get(o, "key")), ""); /* and is forgotten there */
	request_fini(&r);
	CHECK(!*r.key.id);
}

static void check_refused(unsigned where, const char *json, const char *text)
{
	auto_json json_t *o = parse(json);
	auto_(request_fini) struct request r = { 0 };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	CHECK(request_decode(&r, where, o, &err) < 0);
	CHECK_STR(err.text, text);
}

static void test_refusals(void)
{
	char too_long[2048 + 64];

	check_refused(REQUEST_CHECKPOINT, "{\"dir\": \"/s\"}", "parameter 'id': is missing");
	check_refused(REQUEST_CHECKPOINT, "{\"id\": \"a\"}", "parameter 'dir': is missing");
	check_refused(REQUEST_RESUME, "{\"gpu_map\": [{\"from\": \"GPU-a\"}]}",
		      "parameter 'gpu_map': item 0: to is missing");
	check_refused(REQUEST_RESUME,
		      "{\"gpu_map\": [{\"from\": \"GPU-a\", \"to\": "
		      "\"GPU-0000000000000000000000000000000000000000000000\"}]}",
		      "parameter 'gpu_map': item 0: to: longer than 47 bytes");
	snprintf(too_long, sizeof(too_long), "{\"dir\": \"/s\", \"key_file\": \"/%0*d\"}", 1100, 0);
	check_refused(REQUEST_SCHEDULE, too_long, "parameter 'key_file': is too long");
}

static void test_pairs(void)
{
	auto_json json_t *o = parse("{\"gpu_map\": [{\"from\": \"GPU-a\", \"to\": \"GPU-b\"}, "
				    "{\"from\": \"GPU-b\", \"to\": \"GPU-a\"}]}");
	auto_(request_fini) struct request r = { 0 };

	CHECK(request_decode(&r, REQUEST_RESTORE, o, NULL) == 0);
	CHECK(r.n_pairs == 2);
	CHECK_STR(r.pairs[1].from, "GPU-b");
	CHECK_STR(r.pairs[1].to, "GPU-a");
}

/* ---- defaults ---- */

static void configure(const char *text)
{
	static char path[] = "/tmp/test-request-XXXXXX";
	static bool made;
	FILE *f;

	if (!made)
		close(mkstemp(path));
	made = true;
	f = fopen(path, "w");
	CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
	CHECK(setenv("BRUMATE_CONFIG", path, 1) == 0);
}

static void check_defaults(unsigned where, const char *given, const char *want)
{
	auto_json json_t *o = parse(given), *expected = parse(want);

	CHECK(request_add_defaults(o, where, NULL) == 0);
	if (!json_equal(o, expected))
		json_dumpf(o, stderr, 0);
	CHECK(json_equal(o, expected));
}

static void test_defaults(void)
{
	struct request r = { .rehearse = true, .compress = "none" };
	struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	configure("[Operation]\nKeepCopy=yes\nTcpClose=yes\nTimeout=3s\n[Store]\nCompress=lz4\n");
	check_defaults(REQUEST_SUSPEND, "{}", "{\"timeout_ms\": 3000}");
	check_defaults(REQUEST_RESUME, "{}", "{\"timeout_ms\": 3000, \"keep_copy\": true}");
	check_defaults(REQUEST_RESUME, "{\"keep_copy\": false, \"timeout_ms\": 0}",
		       "{\"keep_copy\": false, \"timeout_ms\": 0}");
	check_defaults(REQUEST_RESTORE, "{}", "{\"timeout_ms\": 3000, \"tcp_close\": true}");
	check_defaults(REQUEST_CHECKPOINT, "{\"compress\": \"zstd\"}",
		       "{\"compress\": \"zstd\", \"timeout_ms\": 3000, \"keep_copy\": true, "
		       "\"tcp_close\": true}");
	CHECK(conf_load(&conf, NULL) == 0);
	request_configure(&r, REQUEST_SCHEDULE, &conf);
	CHECK(r.keep_copy && r.rehearse && r.timeout_ms == 3000 && r.tcp_close);
	CHECK_STR(r.compress, "none");
	conf_fini(&conf);

	configure("");
	check_defaults(REQUEST_SUSPEND, "{}", "{}");
	check_defaults(REQUEST_CHECKPOINT, "{}", "{\"compress\": \"auto\"}");
	CHECK(unlink(getenv("BRUMATE_CONFIG")) == 0);
}

int main(void)
{
	test_table();
	test_options_of_each();
	test_check();
	test_pick();
	test_decode();
	test_refusals();
	test_pairs();
	test_defaults();
	return 0;
}
