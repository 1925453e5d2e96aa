// SPDX-License-Identifier: MIT
/* The order of those who wait for device memory, and the choice of the one that leaves. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "../base/scratch.h"
#include "base/clock.h"
#include "check.h"
#include "engine/neighbours.h"
#include "engine/turn.h"

#define AT(s) ((s) * (uint64_t)NS_PER_S)

static void test_order(void)
{
	static const char early[] = "0_1000000000_11111111", late[] = "0_2000000000_22222222",
			  high[] = "2_30000000000_33333333";

	CHECK(turn_compare(early, late, AT(3)) < 0 && turn_compare(late, early, AT(3)) > 0);
	CHECK(turn_compare(high, early, AT(31)) < 0);
	/* Who has waited for more than a minute longer counts as one of two priorities more. */
	CHECK(turn_compare("2_100000000000_33333333", early, AT(101)) > 0);
	/* What is no turn has some place, and the same from both sides. */
	CHECK(turn_compare("x", early, AT(3)) == -turn_compare(early, "x", AT(3)) ||
	      (turn_compare("x", early, AT(3)) > 0) == (turn_compare(early, "x", AT(3)) < 0));
}

static void test_choice(void)
{
	struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct neighbour n[] = {
		{ "a", .priority = 0, .idle_ms = 5000, .resident_ms = 90000 },
		{ "b", .priority = 0, .idle_ms = 9000, .resident_ms = 90000 },
		{ "c", .priority = 1, .idle_ms = 90000, .resident_ms = 90000 },
		{ "d", .priority = -1, .idle_ms = 10, .resident_ms = 1000 },
	};

	conf.min_resident_ms = 2000;
	for (size_t i = 0; i < sizeof(n) / sizeof(n[0]); i++)
		n[i].min_resident_ms = CONF_UNSET;
	CHECK(neighbours_choose(n, 0, 0, &conf) == -1);
	CHECK(neighbours_choose(n, 4, 0, &conf) == 1); /* d is in use, and has just come */
	n[3].resident_ms = 3000;
	CHECK(neighbours_choose(n, 4, 0, &conf) == 3);
	n[3].cost_ms = 400; /* to throw it out so soon would be thrashing */
	CHECK(neighbours_choose(n, 4, 0, &conf) == 1);
	n[1].resident_ms = 1000; /* nobody has used it since it came */
	CHECK(neighbours_choose(n, 4, 0, &conf) == 0);
	n[1].resident_ms = 3000;
	CHECK(neighbours_choose(n, 4, 0, &conf) == 1);
	CHECK(neighbours_choose(n, 3, -1, &conf) == -1); /* none leaves for a lower one */
	CHECK(neighbours_choose(&n[2], 1, 0, &conf) == -1);
	CHECK(neighbours_choose(&n[2], 1, 1, &conf) == 0);
}

/* Two that throw each other out stay for longer each time, up to a limit; the first time is none in turn. */
static void test_turns(void)
{
	static const struct {
		unsigned turns;
		uint64_t least_ms;
	} all[] = {
		{ 0, 2000 }, { 1, 2000 }, { 2, 4000 }, { 3, 8000 }, { 5, 32000 }, { 90, 32000 }
	};
	struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct neighbour n = { "a", .min_resident_ms = CONF_UNSET, .idle_ms = 10,
				       .turns = all[i].turns, .resident_ms = all[i].least_ms - 1 };

		CHECK(neighbours_choose(&n, 1, 0, &conf) == -1);
		n.resident_ms++;
		CHECK(neighbours_choose(&n, 1, 0, &conf) == 0);
		n.resident_ms = all[i].least_ms - 1;
		n.idle_ms = 1900; /* used, and not in use any more */
		CHECK(neighbours_choose(&n, 1, 0, &conf) == (n.idle_ms <= n.resident_ms ? 0 : -1));
	}
}

/* What is in host memory already costs less to have leave. */
static void test_cost(void)
{
	struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct neighbour n[] = {
		{ "a", .idle_ms = 9000, .resident_ms = 90000, .gpu_bytes = 100 },
		{ "b", .idle_ms = 5000, .resident_ms = 90000, .gpu_bytes = 100, .kept_bytes = 100 },
	};

	CHECK(neighbours_choose(n, 2, 0, &conf) == 1);
	n[1].kept_bytes = 0;
	CHECK(neighbours_choose(n, 2, 0, &conf) == 0);
	n[0].idle_ms = n[1].idle_ms = 10; /* in use, for longer than any MinResident= but its own */
	n[0].min_resident_ms = CONF_UNSET;
	n[1].min_resident_ms = 100000;
	CHECK(neighbours_choose(n, 2, 0, &conf) == 0 &&
	      neighbours_choose(&n[1], 1, 0, &conf) == -1);
}

/* ---- turns that are held ---- */

/* What happens when a turn is locked: that fails, or somebody looks just then. */
static enum { LOCK_USUAL, LOCK_FAILS, LOCK_LOOKED_AT } locking;
static struct room_turn looker = TURN_NONE;

/* In the place of libc's. */
int flock(int fd, int operation)
{
	if (operation == (LOCK_EX | LOCK_NB) && locking == LOCK_FAILS) {
		errno = ENOLCK;
		return -1;
	}
	if (operation == (LOCK_EX | LOCK_NB) && locking == LOCK_LOOKED_AT) {
		locking = LOCK_USUAL;
		CHECK(turn_is_first(&looker));
	}
	return (int)syscall(SYS_flock, fd, operation);
}

static int count_turns(void)
{
	char path[PATH_MAX + 8];
	struct dirent *entry;
	int n = 0;

	snprintf(path, sizeof(path), "%s/turns", scratch);
	DIR *dir = opendir(path);
	while (dir && dir_next(dir, &entry) > 0)
		n++;
	if (dir)
		closedir(dir);
	return n;
}

static struct job waiting(const char *id, int priority)
{
	struct job job = { .attributes.priority = priority };

	snprintf(job.id, sizeof(job.id), "%s", id);
	return job;
}

static void test_held(void)
{
	struct room_turn first = TURN_NONE;
	const uint64_t now_ns = clock_now_ns();
	const struct job low = waiting("11111111", 0), high = waiting("22222222", 9);

	close(new_scratch());
	setenv("BRUMATE_RUNTIME_DIR", scratch, 1);
	locking = LOCK_FAILS;
	CHECK(turn_take(&looker, &low, now_ns) == -ENOLCK && !looker.path);
	CHECK(count_turns() == 0);

	locking = LOCK_USUAL;
	CHECK(turn_take(&looker, &low, now_ns) == 0);
	locking = LOCK_LOOKED_AT;
	CHECK(turn_take(&first, &high, now_ns) == 0);
	CHECK(locking == LOCK_USUAL && count_turns() == 2);
	CHECK(!turn_is_first(&looker) && turn_is_first(&first));

	/* As if its holder had been stopped a minute ago. */
	const struct timespec past[2] = { { .tv_sec = time(NULL) - 60 },
					  { .tv_sec = time(NULL) - 60 } };
	CHECK(futimens(first.fd, past) == 0 && turn_is_first(&looker));
	CHECK(turn_is_first(&first) && !turn_is_first(&looker)); /* it goes on */

	close(first.fd); /* as if its holder had died */
	first.fd = -1;
	CHECK(turn_is_first(&looker) && count_turns() == 1);
	CHECK(turn_take(&looker, &low, now_ns) == 0 && count_turns() == 1);
	turn_end(&first);
	turn_end(&looker);
	CHECK(count_turns() == 0);
	remove_scratch();
}

int main(void)
{
	test_order();
	test_choice();
	test_turns();
	test_cost();
	test_held();
	return 0;
}
