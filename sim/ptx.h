// SPDX-License-Identifier: MIT
/* The little of PTX that the simulated driver reads: names of entries, and global variables. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PTX_NAME_BYTES = 128 };

struct ptx_global {
	char name[PTX_NAME_BYTES];
	size_t element_bytes, count;
	uint64_t value; /* of the first element; the others are zero */
};

/** Whether @text starts as PTX does. */
bool ptx_recognize(const char *text);

/** The next `.entry NAME` at or after *@pos; false at the end. *@pos moves behind it. */
bool ptx_next_entry(const char *text, size_t *pos, char ret_name[static PTX_NAME_BYTES]);

/** The next `.global` variable; 1 found, 0 at the end, -EINVAL if it is not understood. */
int ptx_next_global(const char *text, size_t *pos, struct ptx_global *ret);
