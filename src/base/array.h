// SPDX-License-Identifier: MIT
/* Arrays on the heap that grow by one item at a time. */
#pragma once

#include <errno.h>
#include <stdlib.h>

enum { ARRAY_LEAST = 8 };

/**
 * Makes room for one more item in an array of @n items of @size_bytes each (NULL if it is empty). A full array is
 * doubled. Returns the array; or NULL, and @items is unchanged. The capacity follows from @n, so use it only for
 * arrays that grow in no other way. Items may be removed from the end.
 */
static inline void *array_room(void *items, size_t n, size_t size_bytes)
{
	if (n && (n < ARRAY_LEAST || n & (n - 1)))
		return items;
	return reallocarray(items, n ? 2 * n : ARRAY_LEAST, size_bytes);
}

/** Adds an item, the arguments after @n, to such an array, whose pointer and count change. 0; -ENOMEM, and nothing has
 * changed. */
#define array_add(items, n, ...)                                             \
	({                                                                   \
		void *array_grown_ = array_room(items, n, sizeof(*(items))); \
                                                                             \
		if (array_grown_) {                                          \
			(items) = array_grown_;                              \
			(items)[(n)++] = __VA_ARGS__;                        \
		}                                                            \
		array_grown_ ? 0 : -ENOMEM;                                  \
	})
