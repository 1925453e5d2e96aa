// SPDX-License-Identifier: MIT
/* The frame of CRIU's image files. */
#include "criu/entries.h"

#include <errno.h>

enum { ENTRY_BYTES_MAX = 8 * 1024 * 1024 };

static int get_u32(struct criu_entries *r, uint32_t *ret)
{
	if (r->left < 4)
		return -EBADMSG;
	*ret = (uint32_t)r->p[0] | (uint32_t)r->p[1] << 8 | (uint32_t)r->p[2] << 16 |
	       (uint32_t)r->p[3] << 24;
	r->p += 4;
	r->left -= 4;
	return 0;
}

int criu_entries_open(struct criu_entries *ret, const void *buf, size_t len_bytes, uint32_t first,
		      uint32_t second)
{
	struct criu_entries r = { buf, len_bytes };
	uint32_t a, b;

	if (get_u32(&r, &a) < 0 || get_u32(&r, &b) < 0 || a != first || b != second)
		return -EBADMSG;
	*ret = r;
	return 0;
}

int criu_entries_open_bare(struct criu_entries *ret, const void *buf, size_t len_bytes,
			   uint32_t number)
{
	struct criu_entries r = { buf, len_bytes };
	uint32_t a;

	if (get_u32(&r, &a) < 0 || a != number)
		return -EBADMSG;
	*ret = r;
	return 0;
}

int criu_entries_next(struct criu_entries *r, struct criu_entries *ret)
{
	uint32_t len;

	if (!r->left)
		return 0;
	if (get_u32(r, &len) < 0 || len > r->left || len > ENTRY_BYTES_MAX)
		return -EBADMSG;
	*ret = (struct criu_entries){ r->p, len };
	r->p += len;
	r->left -= len;
	return 1;
}
