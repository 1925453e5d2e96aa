// SPDX-License-Identifier: MIT
/* Finds the name that was probably meant by a misspelt word. Pure. */
#pragma once

#include <stddef.h>

enum { NEAREST_BYTES = 64 };

/** A search among names. Initialise it with the word alone. */
struct nearest {
	const char *word;	   /* borrowed */
	char found[NEAREST_BYTES]; /* the nearest name so far; empty: none is near */
	size_t distance;
};

/** Keeps @name if it is nearer than all before it, and near enough to the word for a misspelling. */
void nearest_consider(struct nearest *n, const char *name);

/** Edit distance with transpositions. Names longer than 63 are far from everything. */
size_t edit_distance(const char *a, const char *b);
