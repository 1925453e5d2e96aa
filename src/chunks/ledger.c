// SPDX-License-Identifier: MIT
/* Chunks, packs and parts of a checkpoint that is being written; see ledger.h. */
#include "chunks/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"

void ledger_fini(struct ledger *l)
{
	free(l->chunks);
	free(l->slots);
	free(l->packs);
	free(l->parts);
	*l = LEDGER_EMPTY;
}

int64_t ledger_add_parts(struct ledger *l, uint64_t n)
{
	size_t first = l->n_parts;

	if (n > CHUNK_TABLE_BYTES_MAX - first)
		return -EFBIG;
	if (first + n > l->parts_room) {
		size_t room = 2 * l->parts_room > first + n ? 2 * l->parts_room : first + n;
		uint32_t *parts = reallocarray(l->parts, room, sizeof(*parts));

		if (!parts)
			return -ENOMEM;
		l->parts = parts;
		l->parts_room = room;
	}
	for (size_t i = first; i < first + n; i++)
		l->parts[i] = CHUNK_ZERO;
	l->n_parts += n;
	return (int64_t)first;
}

/* The slot of the chunk, or the free one where it belongs. */
static uint32_t *slot_of(const struct ledger *l, const struct digest *digest, uint32_t len_bytes)
{
	for (size_t i = digest_hash(digest);; i++) {
		uint32_t *slot = &l->slots[i & (l->n_slots - 1)];

		if (!*slot)
			return slot;
		const struct chunk_record *c = &l->chunks[*slot - 1].record;
		if (c->len_bytes == len_bytes && !memcmp(&c->digest, digest, sizeof(*digest)))
			return slot;
	}
}

int64_t ledger_find(const struct ledger *l, const struct digest *digest, uint32_t len_bytes)
{
	uint32_t slot = l->n_slots ? *slot_of(l, digest, len_bytes) : 0;

	return slot ? (int64_t)slot - 1 : -ENOENT;
}

/* At most half of the slots are used. */
static int grow_slots(struct ledger *l)
{
	if (2 * (l->n_chunks + 1) <= l->n_slots)
		return 0;
	size_t n = l->n_slots ? 2 * l->n_slots : 1024;
	uint32_t *slots = calloc(n, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	free(l->slots);
	l->slots = slots;
	l->n_slots = n;
	for (size_t i = 0; i < l->n_chunks; i++) {
		const struct chunk_record *c = &l->chunks[i].record;

		if (!l->chunks[i].dead)
			*slot_of(l, &c->digest, c->len_bytes) = (uint32_t)i + 1;
	}
	return 0;
}

int64_t ledger_add_chunk(struct ledger *l, const struct ledger_chunk *c)
{
	struct ledger_chunk *chunks;

	if (l->n_chunks >= CHUNK_ZERO - 1)
		return -EFBIG;
	chunks = array_room(l->chunks, l->n_chunks, sizeof(*chunks));
	if (!chunks)
		return -ENOMEM;
	l->chunks = chunks;
	if (!c->dead) {
		if (grow_slots(l) < 0)
			return -ENOMEM;
		*slot_of(l, &c->record.digest, c->record.len_bytes) = (uint32_t)l->n_chunks + 1;
	}
	chunks[l->n_chunks] = *c;
	return (int64_t)l->n_chunks++;
}

int64_t ledger_add_pack(struct ledger *l, const struct ledger_pack *p)
{
	if (l->n_packs >= MANIFEST_PACKS_MAX)
		return -EFBIG;
	int r = array_add(l->packs, l->n_packs, *p);
	return r < 0 ? r : (int64_t)l->n_packs - 1;
}

/* An index into the ledger with its sort key. */
struct place {
	uint32_t number;
	const struct ledger *ledger;
};

static int by_path(const void *a, const void *b)
{
	const struct place *left = a, *right = b;

	return strcmp(left->ledger->packs[left->number].path,
		      right->ledger->packs[right->number].path);
}

static int by_offset(const void *a, const void *b)
{
	const struct place *left = a, *right = b;
	const struct chunk_record *x = &left->ledger->chunks[left->number].record;
	const struct chunk_record *y = &right->ledger->chunks[right->number].record;

	if (x->pack != y->pack)
		return x->pack < y->pack ? -1 : 1;
	return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* The indexes 0 to @n - 1, sorted by @by. Owned; NULL if out of memory. */
static struct place *sorted(const struct ledger *l, size_t n,
			    int (*by)(const void *a, const void *b))
{
	struct place *places = calloc(n + 1, sizeof(*places));

	for (size_t i = 0; places && i < n; i++)
		places[i] = (struct place){ (uint32_t)i, l };
	if (places && n)
		qsort(places, n, sizeof(*places), by);
	return places;
}

/* Numbers packs in the order of their paths, in the manifest and in the chunks. */
static int order_packs(struct ledger *l, struct manifest *m)
{
	auto_free struct place *places = sorted(l, l->n_packs, by_path);
	auto_free uint32_t *number = calloc(l->n_packs + 1, sizeof(*number));
	struct manifest_pack *packs = calloc(l->n_packs + 1, sizeof(*packs));

	m->memory.packs = packs;
	if (!places || !number || !packs)
		return -ENOMEM;
	for (size_t i = 0; i < l->n_packs; i++) {
		const struct ledger_pack *p = &l->packs[places[i].number];

		number[places[i].number] = (uint32_t)i;
		packs[i].len_bytes = p->len_bytes;
		packs[i].path = strdup(p->path);
		m->memory.n_packs = i + 1;
		if (!packs[i].path)
			return -ENOMEM;
	}
	for (size_t i = 0; i < l->n_chunks; i++)
		l->chunks[i].record.pack = number[l->chunks[i].record.pack];
	return 0;
}

int ledger_finish(struct ledger *l, struct chunk_table *ret, struct manifest *m)
{
	auto_(chunk_table_fini) struct chunk_table t = CHUNK_TABLE_EMPTY;

	if (order_packs(l, m) < 0)
		return -ENOMEM;
	auto_free struct place *places = sorted(l, l->n_chunks, by_offset);
	auto_free uint32_t *number = calloc(l->n_chunks + 1, sizeof(*number));
	t.chunks = calloc(l->n_chunks + 1, sizeof(*t.chunks));
	t.parts = calloc(l->n_parts + 1, sizeof(*t.parts));
	t.regions = calloc(m->memory.n_regions + 1, sizeof(*t.regions));
	if (!places || !number || !t.chunks || !t.parts || !t.regions)
		return -ENOMEM;

	for (size_t i = 0; i < l->n_chunks; i++) {
		number[places[i].number] = (uint32_t)i;
		t.chunks[i] = l->chunks[places[i].number].record;
	}
	for (size_t i = 0; i < l->n_parts; i++)
		t.parts[i] = l->parts[i] == CHUNK_ZERO ? CHUNK_ZERO : number[l->parts[i]];
	for (size_t i = 0; i < m->memory.n_regions; i++)
		t.regions[i].len_bytes = m->memory.regions[i].len_bytes;
	t.n_chunks = l->n_chunks;
	t.n_packs = l->n_packs;
	t.n_parts = l->n_parts;
	t.n_regions = m->memory.n_regions;
	*ret = t;
	t = CHUNK_TABLE_EMPTY;
	return 0;
}
