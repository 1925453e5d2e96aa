// SPDX-License-Identifier: MIT
/* An array that grows, has items taken off, and grows again, where the sanitizers watch its ends. */
#include "base/array.h"

#include <errno.h>
#include <malloc.h>
#include <stdint.h>

#include "check.h"
#include "sanitized.h"

struct numbers {
	uint32_t *items;
	size_t n;
};

static void add(struct numbers *a, uint32_t number)
{
	const size_t before = a->n;

	CHECK(array_add(a->items, a->n, number) == 0 && a->n == before + 1);
	CHECK(malloc_usable_size(a->items) >= a->n * sizeof(*a->items));
}

static void check_all(const struct numbers *a)
{
	for (uint32_t i = 0; i < a->n; i++)
		CHECK(a->items[i] == i);
}

static void test_grows(void)
{
	struct numbers a = { NULL, 0 };

	for (uint32_t most = 0; most < 70; most++) {
		while (a.n < most)
			add(&a, (uint32_t)a.n);
		check_all(&a);
		for (uint32_t left = most; left-- > 0;) {
			a.n = left;
			while (a.n < most)
				add(&a, (uint32_t)a.n);
			check_all(&a);
		}
		a.n = most / 3;
	}
	free(a.items);
}

static void test_refused(void)
{
	uint32_t *items = array_room(NULL, 0, sizeof(*items));

	CHECK(items);
	items[0] = 4711;
	volatile size_t too_many = (size_t)1 << 62;

	CHECK(!array_room(items, too_many, sizeof(*items)) && errno == ENOMEM);
	CHECK(items[0] == 4711);
	free(items);
}

int main(void)
{
	test_grows();
	if (!SANITIZED) /* whose allocators end the program there */
		test_refused();
	return 0;
}
