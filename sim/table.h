// SPDX-License-Identifier: MIT
/* Pointers kept sorted by a number: handles by themselves, memory by address. Owns no element. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct sim_table {
	struct sim_table_slot {
		uint64_t key;
		void *value;
	} * slots;
	size_t n, room;
};

int sim_table_add(struct sim_table *t, uint64_t key, void *value); /* 0, -EEXIST, -ENOMEM */
void *sim_table_get(const struct sim_table *t, uint64_t key);	   /* NULL if there is none */
void *sim_table_floor(const struct sim_table *t, uint64_t key); /* of the greatest key up to @key */
void *sim_table_remove(struct sim_table *t, uint64_t key);	/* what was there, or NULL */
void sim_table_fini(struct sim_table *t);

/* Handles are the addresses of their objects. */
#define handle_add(t, p)    sim_table_add((t), (uintptr_t)(p), (p))
#define handle_valid(t, p)  (sim_table_get((t), (uintptr_t)(p)) != NULL)
#define handle_remove(t, p) sim_table_remove((t), (uintptr_t)(p))
