// SPDX-License-Identifier: MIT
/* Finds the name that was probably meant; see nearest.h. */
#include "base/nearest.h"

#include <string.h>

static size_t min3(size_t a, size_t b, size_t c)
{
	size_t least = a < b ? a : b;

	return least < c ? least : c;
}

size_t edit_distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b);
	size_t rows[3][NEAREST_BYTES];

	if (la >= NEAREST_BYTES || lb >= NEAREST_BYTES)
		return la > lb ? la : lb;

	for (size_t j = 0; j <= lb; j++)
		rows[0][j] = j;
	for (size_t i = 1; i <= la; i++) {
		size_t *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];

		now[0] = i;
		for (size_t j = 1; j <= lb; j++) {
			now[j] = min3(last[j] + 1, now[j - 1] + 1,
				      last[j - 1] + (a[i - 1] != b[j - 1]));
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				now[j] = min3(now[j], before[j - 2] + 1, now[j]);
		}
	}
	return rows[la % 3][lb];
}

void nearest_consider(struct nearest *n, const char *name)
{
	size_t distance = edit_distance(n->word, name);

	if (distance > (strlen(n->word) + 2) / 3 || strlen(name) >= sizeof(n->found) ||
	    (n->found[0] && distance >= n->distance))
		return;
	strcpy(n->found, name);
	n->distance = distance;
}
