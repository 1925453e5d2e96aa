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

/* ---- jobs that share GPUs ---- */

enum { SLICE_MS = 5000, GPU0 = 1, GPU1 = 2 };

static struct served on(uint64_t gpus, uint64_t resident_ms)
{
	return (struct served){ .shares = true,
				.is_running = true,
				.gpus = gpus,
				.resident_ms = resident_ms,
				.name = "on" };
}

static struct served off(uint64_t gpus, uint64_t asleep_ms)
{
	return (struct served){ .shares = true,
				.is_suspended = true,
				.gpus = gpus,
				.asleep_ms = asleep_ms,
				.name = "off" };
}

static bool turn_is(const struct served *all, size_t n, ssize_t leaves, ssize_t comes)
{
	const struct turn_decision d = share_decide(all, n, SLICE_MS);

	return d.leaves == leaves && d.comes == comes &&
	       (!!*d.reason == (leaves >= 0 || comes >= 0));
}

static void test_turns(void)
{
	struct served all[] = { on(GPU0, SLICE_MS), off(GPU0, 1), off(GPU0, 2) };

	CHECK(turn_is(NULL, 0, -1, -1));
	CHECK(turn_is(all, 1, -1, -1)); /* alone */
	CHECK(turn_is(all, 3, 0, 2));
	CHECK_STR(share_decide(all, 3, SLICE_MS).reason,
		  "on has had its slice of 5.0 s, and off is next");
	all[0].resident_ms--;
	CHECK(turn_is(all, 3, -1, -1));
	all[2].pause_ms = 1;
	all[0].resident_ms++;
	CHECK(turn_is(all, 3, 0, 1));
	all[0].pause_ms = 1;
	CHECK(turn_is(all, 3, -1, -1));
	all[0].gpus = GPU1;
	CHECK(turn_is(all, 3, -1, 1));
	all[1].asleep_ms = all[2].asleep_ms = UINT64_MAX; /* not known: in order */
	all[2].pause_ms = 0;
	CHECK(turn_is(all, 3, -1, 1));
}

/* One over two GPUs gets both, however those on one of them take turns. */
static void test_gang(void)
{
	struct served all[] = { on(GPU0, SLICE_MS), on(GPU1, 1), off(GPU0 | GPU1, 9),
				off(GPU0, 8) };

	CHECK(turn_is(all, 4, -1, -1)); /* the last one would be before the gang */
	all[1].resident_ms = SLICE_MS + 1;
	CHECK(turn_is(all, 4, 1, -1));
	all[1] = off(GPU1, 0);
	CHECK(turn_is(all, 4, 0, 2));
	all[2] = on(GPU0 | GPU1, SLICE_MS);
	all[0] = off(GPU0, 0);
	CHECK(turn_is(all, 4, 2, 3));
	all[2] = off(GPU0 | GPU1, 0);
	all[3] = on(GPU0, 0);
	all[1].asleep_ms = 7; /* was before the gang, and shares none of its neighbour's */
	CHECK(turn_is(all, 4, -1, 1));
}

static void test_two_at_once(void)
{
	struct served all[] = { on(GPU0, 5), on(GPU0, 6), on(UINT64_MAX, 7) };

	CHECK(turn_is(all, 2, 0, -1));
	all[1].resident_ms = 5;
	CHECK(turn_is(all, 2, 1, -1));
	all[1].is_pinned = true;
	CHECK(turn_is(all, 2, 0, -1));
	all[1].is_pinned = false;
	CHECK(turn_is(all, 3, 0, -1)); /* one that does not say may want any */
	all[0].is_pinned = all[1].is_pinned = all[2].is_pinned = true;
	CHECK(turn_is(all, 3, -1, -1));
}

static void test_pinned(void)
{
	struct served all[] = { on(GPU0, SLICE_MS), off(GPU0 | GPU1, 9), off(GPU1, 1) };

	all[0].is_pinned = true;
	CHECK(turn_is(all, 3, -1, 2)); /* one that cannot come keeps nobody waiting */
}

static void test_servers_first(void)
{
	struct served all[] = { on(GPU0, 1),
				off(GPU0, 9),
				off(GPU1, 1),
				{ .waits = true, .gpus = GPU0, .name = "llama" } };

	CHECK(turn_is(all, 4, 0, -1));
	CHECK_STR(share_decide(all, 4, SLICE_MS).reason, "server llama waits for room");
	all[0] = off(GPU0, 0);
	CHECK(turn_is(all, 4, -1, 2));
	all[3].waits = false;
	CHECK(turn_is(all, 4, -1, 1));
}

int main(void)
{
	test_turns();
	test_gang();
	test_two_at_once();
	test_pinned();
	test_servers_first();
	test_who_stays();
	test_own_time();
	test_just_back();
	test_order();
	test_reason();
	test_saved();
	return 0;
}
