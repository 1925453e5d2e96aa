// SPDX-License-Identifier: MIT
/* Durations, signals, GPU maps, sizes and ages. */
#include <errno.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "check.h"
#include "cli/arguments.h"
#include "cli/output.h"
#include "wire/wire.h"

static void check_durations(void)
{
	static const struct {
		const char *text;
		uint64_t ms;
	} good[] = {
		{ "0", 0 },	   { "5", 5000 },    { "500ms", 500 },
		{ "30s", 30000 },  { "1.5s", 1500 }, { "2m", 120000 },
		{ "1h", 3600000 }, { "0.1ms", 1 },   { "8760h", 31536000000 },
	};
	static const char *const bad[] = {
		"",	 "-1",	"s",   "1x",  "1 s",   "1e5", "0x10",
		"1.2.3", "1ss", "nan", "inf", "8761h", "+1",  "99999999999999999999"
	};

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		uint64_t ms = 77;

		CHECK(parse_duration(&ms, "--timeout", good[i].text, NULL) == 0);
		CHECK(ms == good[i].ms);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct brumate_error err = BRUMATE_ERROR_NONE;
		uint64_t ms = 77;

		CHECK(parse_duration(&ms, "--timeout", bad[i], &err) == -EINVAL);
		CHECK(ms == 77 && strstr(err.text, "--timeout: ") == err.text && err.hint[0]);
	}
}

static void check_deadlines(void)
{
	const uint64_t now = clock_now_ns();
	uint64_t at = 77;

	CHECK(parse_deadline(&at, "0", 600000, NULL) == 0 && at == DEADLINE_NEVER);
	CHECK(parse_deadline(&at, NULL, 0, NULL) == 0 && at == DEADLINE_NEVER);
	CHECK(parse_deadline(&at, NULL, 600000, NULL) == 0 && at - now >= 600 * NS_PER_S);
	CHECK(parse_deadline(&at, "900s", 600000, NULL) == 0 && at - now >= 900 * NS_PER_S);
	CHECK(at != DEADLINE_NEVER);
	at = 77;
	CHECK(parse_deadline(&at, "soon", 0, NULL) == -EINVAL && at == 77);
}

static void check_numbers(void)
{
	int64_t pid = 0;
	int number = 0;

	CHECK(parse_pid(&pid, "4711", NULL) == 0 && pid == 4711);
	CHECK(parse_pid(&pid, "0", NULL) == -EINVAL);
	CHECK(parse_pid(&pid, "-5", NULL) == -EINVAL);
	CHECK(parse_pid(&pid, "12a", NULL) == -EINVAL);
	CHECK(parse_pid(&pid, "99999999999", NULL) == -EINVAL);
	CHECK(pid == 4711);

	CHECK(parse_signal(&number, "TERM", NULL) == 0 && number == SIGTERM);
	CHECK(parse_signal(&number, "sigkill", NULL) == 0 && number == SIGKILL);
	CHECK(parse_signal(&number, "15", NULL) == 0 && number == 15);
	CHECK(parse_signal(&number, "0", NULL) == -EINVAL);
	CHECK(parse_signal(&number, "FOO", NULL) == -EINVAL);
	CHECK(parse_signal(&number, "", NULL) == -EINVAL);
}

static const char *side(json_t *map, size_t i, const char *key)
{
	return json_string_value(json_object_get(json_array_get(map, i), key));
}

static void check_maps(void)
{
	static const char *const bad[] = { "",	    "0",	  "0=",	     "=1",
					   "0=1,",  "0=1,0=2",	  "GPU-x=1", "a=b",
					   "0=1=2", "GPU-=GPU-1", "0=99999" };
	auto_json json_t *map = NULL;

	CHECK(parse_gpu_map(&map, "0=1,GPU-aa00-1=GPU-bb11-2", NULL) == 0);
	CHECK(json_array_size(map) == 2);
	CHECK_STR(side(map, 0, "from"), "0");
	CHECK_STR(side(map, 0, "to"), "1");
	CHECK_STR(side(map, 1, "from"), "GPU-aa00-1");
	CHECK_STR(side(map, 1, "to"), "GPU-bb11-2");
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct brumate_error err = BRUMATE_ERROR_NONE;
		json_t *untouched = map;

		CHECK(parse_gpu_map(&untouched, bad[i], &err) == -EINVAL);
		CHECK(untouched == map && !strncmp(err.text, "--gpu-map: ", 11));
	}
}

static void check_formats(void)
{
	static const struct {
		uint64_t bytes;
		const char *text;
	} sizes[] = {
		{ 0, "0 B" },
		{ 999, "999 B" },
		{ 1000, "0.98 KiB" },
		{ 1073741824, "1.00 GiB" },
		{ 42000000000, "39.1 GiB" },
		{ 1048575, "1.00 MiB" },
		{ 151397597184, "141 GiB" },
		{ UINT64_MAX, "16.0 EiB" },
	};
	static const struct {
		double seconds;
		const char *text;
	} times[] = {
		{ 0, "0 ms" },	     { 0.0002, "<1 ms" },  { 0.001, "1 ms" },
		{ 0.352, "352 ms" }, { 0.9997, "1.00 s" }, { 12.345, "12.3 s" },
		{ 59.97, "1m00s" },  { 125.2, "2m05s" },   { 7384, "2h03m" },
	};
	char text[WORD_BYTES];

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		format_bytes(text, sizes[i].bytes);
		CHECK_STR(text, sizes[i].text);
	}
	for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
		format_seconds(text, times[i].seconds);
		CHECK_STR(text, times[i].text);
	}
	format_age(text, "2026-01-01T00:00:00.000Z", 1767225600 + 5);
	CHECK_STR(text, "5s");
	format_age(text, "2026-01-01T00:00:00.000Z", 1767225600 + 600);
	CHECK_STR(text, "10m");
	format_age(text, "2026-01-01T00:00:00.000Z", 1767225600 + 3 * 86400);
	CHECK_STR(text, "3d");
	format_age(text, "2026-01-01T00:00:00.000Z", 1767225600 - 60);
	CHECK_STR(text, "0s");
	format_age(text, "yesterday", 0);
	CHECK_STR(text, "-");
	format_age(text, NULL, 0);
	CHECK_STR(text, "-");
}

int main(void)
{
	check_durations();
	check_deadlines();
	check_numbers();
	check_maps();
	check_formats();
	CHECK(words_contain("thaw unfreeze", "unfreeze"));
	CHECK(!words_contain("thaw unfreeze", "unfree"));
	CHECK(!words_contain(NULL, "x"));
	return 0;
}
