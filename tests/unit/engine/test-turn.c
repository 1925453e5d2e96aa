// SPDX-License-Identifier: MIT
/* The order of those who wait for device memory, and the choice of the one that leaves. */
#include <stdint.h>

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

int main(void)
{
	test_order();
	test_choice();
	return 0;
}
