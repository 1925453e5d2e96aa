// SPDX-License-Identifier: MIT
/* Arrays on the heap that grow by one item at a time. */
#pragma once

#include <stdlib.h>

enum { ARRAY_LEAST = 8 };

/**
 * Makes room for one more in an array of @n items of @size_bytes each (NULL where there is none yet), which is
 * doubled where it is full. Returns the array; or NULL, with @items as it was. How much there is room for
 * follows from @n: so it is for arrays that grow in no other way. Items may be taken off.
 */
static inline void *array_room(void *items, size_t n, size_t size_bytes)
{
	if (n && (n < ARRAY_LEAST || n & (n - 1)))
		return items;
	return reallocarray(items, n ? 2 * n : ARRAY_LEAST, size_bytes);
}
