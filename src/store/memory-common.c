// SPDX-License-Identifier: MIT
/* How much of their memory two checkpoints have in common, by the digests in their tables. */
#include "store/memory-read.h"

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

/* 1: there is a table. */
static int open_table(struct chunks_reader **ret, const struct store_image *i,
		      struct brumate_error *err)
{
	int r = chunks_open(ret, i, err);

	if (r == -ENOENT && err)
		*err = BRUMATE_ERROR_NONE;
	return r == -ENOENT ? 0 : r < 0 ? r : 1;
}

int chunks_compare(struct chunks_common *ret, const struct store_image *from,
		   const struct store_image *to, struct brumate_error *err)
{
	auto_(chunks_reader_free) struct chunks_reader *a = NULL;
	auto_(chunks_reader_free) struct chunks_reader *b = NULL;
	static const struct chunk_table none;
	int r = open_table(&a, from, err);

	if (r >= 0)
		r = open_table(&b, to, err);
	if (r < 0)
		return r;
	r = compare(ret, a ? &a->table : &none, b ? &b->table : &none);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}
