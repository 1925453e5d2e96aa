// SPDX-License-Identifier: MIT
/* The digests of a region's parts, as its checkpoint tells them. */
#include "chunks/reader.h"

#include <errno.h>
#include <stdlib.h>

int chunks_digests(const struct chunks_reader *m, size_t index, struct digest *ret, size_t n)
{
	const struct chunk_table *t = &m->table;
	const struct chunk_region *region;
	struct digest zero = { 0 };
	bool have_zero = false;

	if (t->sealed)
		return 0;
	if (index >= t->n_regions || chunk_parts(t->regions[index].len_bytes) != n ||
	    t->regions[index].len_bytes % CHUNK_BYTES_MAX)
		return -EINVAL;
	region = &t->regions[index];
	for (size_t i = 0; i < n; i++) {
		uint32_t part = t->parts[region->first + i];

		if (part == CHUNK_ZERO && !have_zero) {
			int r = chunk_digest_zeros(&zero);

			if (r < 0)
				return r;
			have_zero = true;
		}
		ret[i] = part == CHUNK_ZERO ? zero : t->chunks[part].digest;
	}
	return 1;
}
