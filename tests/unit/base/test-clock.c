// SPDX-License-Identifier: MIT
/* Deadlines as poll(2) takes them, and stamps. */
#include "base/clock.h"

#include <errno.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "check.h"

static void test_deadlines(void)
{
	uint64_t now = clock_now_ns();

	CHECK(clock_now_ns() >= now);
	CHECK(deadline_left_ms(DEADLINE_NEVER) == -1);
	CHECK(deadline_left_ms(0) == 0 && deadline_left_ms(now) == 0);
	CHECK(deadline_left_ms(deadline_in_ms(0)) == 0);

	int left = deadline_left_ms(deadline_in_ms(60000));
	CHECK(left > 50000 && left <= 60000);
	/* Rounded up: a poll that ends in time never finds its deadline still to come. */
	for (uint64_t extra = 0; extra < 2 * NS_PER_MS; extra += 99991) {
		uint64_t before = clock_now_ns(), deadline = before + NS_PER_S + extra;
		uint64_t left_ns = (uint64_t)deadline_left_ms(deadline) * NS_PER_MS;
		uint64_t after = clock_now_ns();

		CHECK(after >= deadline || left_ns >= deadline - after);
		CHECK(left_ns < deadline - before + NS_PER_MS);
	}
	CHECK(deadline_left_ms(clock_now_ns() + UINT64_MAX / 4) == INT_MAX);
	CHECK(deadline_left_ms(UINT64_MAX - 1) == INT_MAX);
	CHECK(clock_since_s(now) >= 0 && clock_since_s(now) < 60);
}

/* What waits by a timespec and what waits by poll wait as long. */
static void test_timespec(void)
{
	struct timespec ts = deadline_timespec(3 * NS_PER_S + 7), none = deadline_timespec(0), now;

	CHECK(ts.tv_sec == 3 && ts.tv_nsec == 7);
	CHECK(none.tv_sec == 0 && none.tv_nsec == 0);
	ts = deadline_timespec(DEADLINE_NEVER);
	CHECK(ts.tv_nsec >= 0 && (uint64_t)ts.tv_nsec < NS_PER_S);
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0 && ts.tv_sec > now.tv_sec);
}

/* Seconds since 1970 by the clock of stamps: time() reads one that lags by up to a tick of the kernel. */
static time_t wall_seconds(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
	return now.tv_sec;
}

static void test_wall(void)
{
	uint64_t before = (uint64_t)wall_seconds(), wall = clock_wall_ns() / NS_PER_S;

	CHECK(wall >= before && wall <= (uint64_t)wall_seconds());
}

static void test_stamp(void)
{
	char stamp[CLOCK_STAMP_BYTES];
	struct tm tm = { 0 };
	time_t before = wall_seconds();

	clock_stamp(stamp);
	time_t after = wall_seconds();

	CHECK(strlen(stamp) == CLOCK_STAMP_BYTES - 1);
	char *rest = strptime(stamp, "%Y-%m-%dT%H:%M:%S", &tm);
	CHECK(rest && rest[0] == '.' && strspn(rest + 1, "0123456789") == 3);
	CHECK_STR(rest + 4, "Z");
	time_t then = timegm(&tm);
	CHECK(then >= before && then <= after);
}

static void test_stamps(void)
{
	static const char *const wrong[] = {
		"",
		"x",
		"2026-03-10T00:00:00Z",
		"2026-03-10T00:00:00.000",
		"2026-03-10T00:00:00.000ZZ",
		"2026-03-10 00:00:00.000Z",
		"1969-12-31T23:59:58.000Z",
		"2026-03-10T00:00:00.1Z  ",
	};
	uint64_t ms = 7;

	CHECK(clock_parse_stamp(&ms, "1970-01-02T00:00:01.234Z") == 0 && ms == 86401234);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		CHECK(clock_parse_stamp(&ms, wrong[i]) == -EBADMSG);
	CHECK(ms == 86401234);
}

int main(void)
{
	/* Stamps are UTC wherever we are. */
	setenv("TZ", "America/St_Johns", 1);
	tzset();
	test_deadlines();
	test_timespec();
	test_wall();
	test_stamp();
	test_stamps();
	return 0;
}
