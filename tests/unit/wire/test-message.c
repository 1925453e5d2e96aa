// SPDX-License-Identifier: MIT
/* Decoding of frames and the JSON form of errors: what is refused, what survives the round trip. */
#include "check.h"
#include "wire/wire.h"

#include <errno.h>
#include <string.h>

static int decode(const char *text, size_t len)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	json_t *json = NULL;
	int r = wire_decode(&json, text, len, &err);

	CHECK((r == 0) == (json != NULL));
	CHECK((r == 0) == (err.code == 0));
	CHECK(r == 0 || (err.text[0] && !strchr(err.text, '\n')));
	json_decref(json);
	return r;
}

static void test_decode(void)
{
	static const char *const bad[] = {
		"",
		" ",
		"{",
		"}",
		"[]",
		"1",
		"null",
		"\"x\"",
		"{\"a\":1,\"a\":2}",
		"{\"a\":1}x",
		"{\"a\":\"\xff\"}",
		"{\"a\":\"\\u0000\"}",
		"{\"a\":1e999}",
		"{'a':1}",
	};

	CHECK(decode("{}", 2) == 0);
	CHECK(decode(" {\"method\":\"a.b\"}\n", 18) == 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		CHECK(decode(bad[i], strlen(bad[i])) == -EBADMSG);
	CHECK(decode("{}\0{}", 5) == -EBADMSG);

	auto_free char *deep = malloc(200001);
	memset(deep, '[', 200000);
	memcpy(deep, "{\"a\":", 5);
	CHECK(decode(deep, 200000) == -EBADMSG);
}

static void test_error_round_trip(void)
{
	struct brumate_error err = BRUMATE_ERROR_NONE, back;

	brumate_fail(&err, ENOSPC, "store \xff: disk full");
	brumate_hint(&err, "free 3 GiB");
	brumate_error_exit(&err, EXIT_STILL_RUNNING);
	auto_json json_t *json = wire_error_to_json(&err);
	wire_error_from_json(&back, json);
	CHECK(back.code == ENOSPC);
	CHECK(brumate_exit_code(&back) == EXIT_STILL_RUNNING);
	CHECK_STR(back.text, "store ?: disk full");
	CHECK_STR(back.hint, "free 3 GiB");
}

static void test_error_tolerant(void)
{
	static const char *const texts[] = {
		"{}",
		"{\"code\":0}",
		"{\"code\":-5,\"exit\":9999}",
		"{\"code\":\"x\",\"text\":1}",
		"{\"code\":99999999999999,\"text\":\"\",\"hint\":[]}",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		struct brumate_error err;
		auto_json json_t *json = json_loads(texts[i], 0, NULL);

		CHECK(json);
		wire_error_from_json(&err, json);
		CHECK(err.code == EPROTO && err.exit_code == 0 && err.text[0]);
	}
	struct brumate_error err;
	wire_error_from_json(&err, NULL);
	CHECK(err.code == EPROTO);
}

static void test_getters(void)
{
	auto_json json_t *o = json_loads(
		"{\"s\":\"x\",\"i\":7,\"b\":true,\"a\":[1],\"o\":{},\"n\":null}", 0, NULL);
	struct brumate_error err;
	const char *s;
	int64_t i = 5;
	bool b = false;
	json_t *v;

	CHECK(wire_get_string(o, "s", &s, &err) == 0 && !strcmp(s, "x"));
	CHECK(wire_get_string(o, "n", &s, &err) == 0 && !s);
	CHECK(wire_get_string(o, "missing", &s, &err) == 0 && !s);
	CHECK(wire_get_string(o, "i", &s, &err) == -EINVAL && strstr(err.text, "'i'"));
	CHECK(wire_need_string(o, "n", &s, &err) == -EINVAL && strstr(err.text, "missing"));
	CHECK(wire_get_int(o, "n", 0, 9, &i, &err) == 0 && i == 5);
	CHECK(wire_get_int(o, "i", 0, 7, &i, &err) == 0 && i == 7);
	CHECK(wire_get_int(o, "i", 0, 6, &i, &err) == -EINVAL &&
	      strstr(err.text, "between 0 and 6"));
	CHECK(wire_get_int(o, "b", 0, 6, &i, &err) == -EINVAL && i == 7);
	CHECK(wire_get_bool(o, "b", &b, &err) == 0 && b);
	CHECK(wire_get_bool(o, "s", &b, &err) == -EINVAL);
	CHECK(wire_get_array(o, "a", &v, &err) == 0 && json_array_size(v) == 1);
	CHECK(wire_get_array(o, "o", &v, &err) == -EINVAL);
	CHECK(wire_get_object(o, "o", &v, &err) == 0 && v);
	CHECK(wire_get_object(o, "n", &v, &err) == 0 && !v);
	CHECK(wire_get_object(o, "a", &v, &err) == -EINVAL);
}

int main(void)
{
	test_decode();
	test_error_round_trip();
	test_error_tolerant();
	test_getters();
	return 0;
}
