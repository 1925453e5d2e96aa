// SPDX-License-Identifier: MIT
/* Decisions about servers: who leaves, and who stays. */
#include "edges/serve/policy.h"

#include <string.h>

#include "check.h"

enum { AFTER_MS = 60000 };

static struct served idle_for(uint64_t idle_ms)
{
	return (struct served){ .is_running = true, .idle_ms = idle_ms, .resident_ms = UINT64_MAX };
}

static ssize_t choose(const struct served *all, size_t n)
{
	return serve_decide(all, n, AFTER_MS).at;
}

static void test_who_stays(void)
{
	struct served s = idle_for(AFTER_MS);

	CHECK(choose(NULL, 0) == -1);
	CHECK(choose(&s, 1) == 0);
	s.idle_ms = AFTER_MS - 1;
	CHECK(choose(&s, 1) == -1);
	s.idle_ms = UINT64_MAX; /* not known */
	CHECK(choose(&s, 1) == -1);
	s = idle_for(AFTER_MS);
	s.is_running = false;
	CHECK(choose(&s, 1) == -1);
	s = idle_for(AFTER_MS);
	s.is_pinned = true;
	CHECK(choose(&s, 1) == -1);
	s = idle_for(AFTER_MS);
	s.pause_ms = 1;
	CHECK(choose(&s, 1) == -1);
}

static void test_own_time(void)
{
	struct served s = idle_for(AFTER_MS);

	s.idle_after_ms = AFTER_MS + 1;
	CHECK(choose(&s, 1) == -1);
	s.idle_ms = AFTER_MS + 1;
	CHECK(choose(&s, 1) == 0);
}

/* One that has just come back was last asked long ago, as far as its agents know. */
static void test_just_back(void)
{
	struct served s = idle_for(10 * AFTER_MS);

	s.resident_ms = AFTER_MS - 1;
	CHECK(choose(&s, 1) == -1);
	s.resident_ms = AFTER_MS;
	CHECK(choose(&s, 1) == 0);
}

static void test_order(void)
{
	struct served all[] = { idle_for(2 * AFTER_MS), idle_for(4 * AFTER_MS),
				idle_for(3 * AFTER_MS), idle_for(1) };

	CHECK(choose(all, 4) == 1);
	all[0].priority = -1;
	all[3].priority = -2;
	CHECK(choose(all, 4) == 0);
}

static void test_reason(void)
{
	const struct served s = idle_for(90500);
	const struct decision d = serve_decide(&s, 1, AFTER_MS);

	CHECK_STR(d.reason, "not asked for 90.5 s, which is 60.0 s or more");
}

static void test_saved(void)
{
	struct served all[] = { { .is_suspended = true, .copy_bytes = 3 << 20, .asleep_ms = 5 },
				{ .is_suspended = true, .copy_bytes = 2 << 20, .asleep_ms = 9 },
				{ .is_running = true, .copy_bytes = 90 << 20 } };

	CHECK(serve_decide_save(NULL, 0, 1).at == -1);
	CHECK(serve_decide_save(all, 3, 0).at == -1);
	CHECK(serve_decide_save(all, 3, 5 << 20).at == -1);
	struct decision d = serve_decide_save(all, 3, 4 << 20);
	CHECK(d.at == 1);
	CHECK_STR(d.reason, "suspended for the longest time, and copies take 5.0 MiB, which is "
			    "more than 4.0 MiB");
	all[1].priority = 1;
	CHECK(serve_decide_save(all, 3, 4 << 20).at == 0);
	all[0].pause_ms = 1;
	CHECK(serve_decide_save(all, 3, 4 << 20).at == 1);
	all[1].is_pinned = true;
	CHECK(serve_decide_save(all, 3, 4 << 20).at == -1);
}

int main(void)
{
	test_who_stays();
	test_own_time();
	test_just_back();
	test_order();
	test_reason();
	test_saved();
	return 0;
}
