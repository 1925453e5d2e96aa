// SPDX-License-Identifier: MIT
/* The distance of words, and what is near enough to be meant. */
#include <string.h>

#include "base/nearest.h"
#include "check.h"

static void check_distance(void)
{
	char name[80];

	memset(name, 'a', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	CHECK(edit_distance("", "abc") == 3);
	CHECK(edit_distance("suspend", "suspend") == 0);
	CHECK(edit_distance("supsend", "suspend") == 1);
	CHECK(edit_distance("restroe", "restore") == 1);
	CHECK(edit_distance("kitten", "sitting") == 3);
	CHECK(edit_distance(name, "a") == sizeof(name) - 1);
}

static void check_nearest(void)
{
	struct nearest n = { .word = "trian-1" };

	nearest_consider(&n, "other");
	CHECK_STR(n.found, "");
	nearest_consider(&n, "train-12");
	CHECK_STR(n.found, "train-12");
	nearest_consider(&n, "train-1");
	nearest_consider(&n, "train-2");
	CHECK_STR(n.found, "train-1");
}

int main(void)
{
	check_distance();
	check_nearest();
	return 0;
}
