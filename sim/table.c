// SPDX-License-Identifier: MIT
/* Pointers kept sorted by a number. An array: lookups are far more frequent than changes. */
#include "table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Index of the first slot with a key above @key. */
static size_t above(const struct sim_table *t, uint64_t key)
{
	size_t low = 0, high = t->n;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (t->slots[mid].key <= key)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

int sim_table_add(struct sim_table *t, uint64_t key, void *value)
{
	size_t at = above(t, key);

	if (at && t->slots[at - 1].key == key)
		return -EEXIST;
	if (t->n == t->room) {
		size_t room = t->room ? 2 * t->room : 16;
		void *slots = realloc(t->slots, room * sizeof(*t->slots));

		if (!slots)
			return -ENOMEM;
		t->slots = slots;
		t->room = room;
	}
	memmove(&t->slots[at + 1], &t->slots[at], (t->n - at) * sizeof(*t->slots));
	t->slots[at] = (struct sim_table_slot){ key, value };
	t->n++;
	return 0;
}

void *sim_table_floor(const struct sim_table *t, uint64_t key)
{
	size_t at = above(t, key);

	return at ? t->slots[at - 1].value : NULL;
}

void *sim_table_get(const struct sim_table *t, uint64_t key)
{
	size_t at = above(t, key);

	return at && t->slots[at - 1].key == key ? t->slots[at - 1].value : NULL;
}

void *sim_table_remove(struct sim_table *t, uint64_t key)
{
	size_t at = above(t, key);
	void *value;

	if (!at || t->slots[at - 1].key != key)
		return NULL;
	value = t->slots[at - 1].value;
	memmove(&t->slots[at - 1], &t->slots[at], (t->n - at) * sizeof(*t->slots));
	t->n--;
	return value;
}

void sim_table_fini(struct sim_table *t)
{
	free(t->slots);
	*t = (struct sim_table){ 0 };
}
