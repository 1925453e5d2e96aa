// SPDX-License-Identifier: MIT
/* Pointers kept sorted by a number: handles by themselves, memory by address. Owns no element. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct table {
	struct table_slot {
		uint64_t key;
		void *value;
	} * slots;
	size_t n, room;
};

int table_add(struct table *t, uint64_t key, void *value); /* 0, -EEXIST, -ENOMEM */
void *table_get(const struct table *t, uint64_t key);	   /* NULL if there is none */
void *table_floor(const struct table *t, uint64_t key);	   /* of the greatest key up to @key */
void *table_remove(struct table *t, uint64_t key);	   /* what was there, or NULL */
void table_fini(struct table *t);

/* Handles are the addresses of their objects. */
#define handle_add(t, p)    table_add((t), (uintptr_t)(p), (p))
#define handle_valid(t, p)  (table_get((t), (uintptr_t)(p)) != NULL)
#define handle_remove(t, p) table_remove((t), (uintptr_t)(p))
