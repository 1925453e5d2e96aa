// SPDX-License-Identifier: MIT
/* How much of their memory two checkpoints have in common, by the digests in their tables. */
#include "chunks/reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int by_digest(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct digest));
}

/* Digests of the chunks of @t, sorted. Owned; NULL without memory. */
static struct digest *digests_of(const struct chunk_table *t)
{
	struct digest *digests = calloc(t->n_chunks + 1, sizeof(*digests));

	for (size_t i = 0; digests && i < t->n_chunks; i++)
		digests[i] = t->chunks[i].digest;
	if (digests && t->n_chunks)
		qsort(digests, t->n_chunks, sizeof(*digests), by_digest);
	return digests;
}

static int compare(struct chunks_common *ret, const struct chunk_table *from,
		   const struct chunk_table *to)
{
	struct chunks_common c = { 0 };
	auto_free struct digest *digests = digests_of(from);
	/* Each chunk once, as it is stored; those of no use do not count. */
	auto_free bool *used = calloc(to->n_chunks + 1, sizeof(*used));

	if (!digests || !used)
		return -ENOMEM;
	for (size_t i = 0; i < to->n_parts; i++)
		if (to->parts[i] != CHUNK_ZERO)
			used[to->parts[i]] = true;
	for (size_t i = 0; i < to->n_chunks; i++) {
		const struct chunk_record *chunk = &to->chunks[i];

		if (!used[i])
			continue;
		c.chunks++;
		if (!bsearch(&chunk->digest, digests, from->n_chunks, sizeof(*digests), by_digest))
			continue;
		c.same_chunks++;
		c.same_bytes += chunk->len_bytes;
	}
	*ret = c;
	return 0;
}

int chunks_compare(struct chunks_common *ret, const struct chunks_reader *from,
		   const struct chunks_reader *to)
{
	static const struct chunk_table none;

	return compare(ret, from ? &from->table : &none, to ? &to->table : &none);
}
