// SPDX-License-Identifier: MIT
/* Arrays on the heap that grow by one item at a time. */
#pragma once

#include <stdlib.h>

enum { ARRAY_LEAST = 8 };

/**
 * Makes room for one more item in an array of @n items of @size_bytes each (NULL where there is none yet). An
 * array that is full is doubled. Returns the array; or NULL, with @items as it was. The room follows from @n, so
 * this is for arrays that grow in no other way. Items may be taken off.
 */
static inline void *array_room(void *items, size_t n, size_t size_bytes)
{
	if (n && (n < ARRAY_LEAST || n & (n - 1)))
		return items;
	return reallocarray(items, n ? 2 * n : ARRAY_LEAST, size_bytes);
}
