// SPDX-License-Identifier: MIT
/* Loading regions: their chunks are read once each, in the order of the disk, and go to all their parts. */
#include "chunks/reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A part of a region, and the chunk that it is. */
struct load_part {
	uint32_t chunk;
	uint32_t place;
	uint64_t part;
};

struct load {
	struct chunks_reader *m;
	const struct chunks_place *places;
	size_t n_places;
	struct load_part *parts; /* those that are stored, by chunk */
	uint32_t *chunks;	 /* of those, each once */
	size_t *first;		 /* of each, its parts in order; one more for the end */
	size_t n_parts, n;	 /* of parts, of chunks */
	bool (*cancelled)(void *arg);
	void *arg;
};

static void fini(struct load *l)
{
	free(l->parts);
	free(l->chunks);
	free(l->first);
}
DEFINE_AUTO_FINI(struct load, fini)

static const struct chunk_region *region_of(const struct load *l, uint32_t place)
{
	return &l->m->table.regions[l->places[place].index];
}

static int compare(const void *a, const void *b)
{
	const struct load_part *x = a, *y = b;

	if (x->chunk != y->chunk)
		return x->chunk < y->chunk ? -1 : 1;
	if (x->place != y->place)
		return x->place < y->place ? -1 : 1;
	return x->part < y->part ? -1 : x->part > y->part;
}

static void collect_parts(struct load *l, uint32_t place)
{
	const struct chunk_region *region = region_of(l, place);
	const uint32_t *chunks = l->m->table.parts + region->first;

	for (uint64_t i = 0; i < chunk_parts(region->len_bytes); i++)
		if (chunks[i] != CHUNK_ZERO)
			l->parts[l->n_parts++] = (struct load_part){ chunks[i], place, i };
}

static int plan(struct load *l)
{
	size_t most = 1;

	for (uint32_t k = 0; k < l->n_places; k++)
		most += (size_t)chunk_parts(region_of(l, k)->len_bytes);
	l->parts = calloc(most, sizeof(*l->parts));
	l->chunks = calloc(most, sizeof(*l->chunks));
	l->first = calloc(most, sizeof(*l->first));
	if (!l->parts || !l->chunks || !l->first)
		return -ENOMEM;
	for (uint32_t k = 0; k < l->n_places; k++)
		collect_parts(l, k);
	qsort(l->parts, l->n_parts, sizeof(*l->parts), compare);
	for (size_t i = 0; i < l->n_parts; i++) {
		if (l->n && l->chunks[l->n - 1] == l->parts[i].chunk)
			continue;
		l->first[l->n] = i;
		l->chunks[l->n++] = l->parts[i].chunk;
	}
	l->first[l->n] = l->n_parts;
	return 0;
}

static int tick(void *arg)
{
	const struct load *l = arg;

	return l->cancelled && l->cancelled(l->arg) ? -ECANCELED : 0;
}

static int give(struct load *l, uint32_t place, uint64_t part, const void *data,
		struct brumate_error *err)
{
	const struct chunks_place *p = &l->places[place];
	const struct manifest_region *region = &l->m->manifest->memory.regions[p->index];
	uint64_t offset = part * CHUNK_BYTES_MAX;
	uint32_t len = chunk_part_bytes(region->len_bytes, part);
	int r = p->sink(p->arg, offset, data, len);

	return r < 0 ? brumate_fail(err, -r,
				    "what was read cannot be put at 0x%" PRIx64
				    " of process %d: %m",
				    region->va + offset, region->pid)
		     : 0;
}

/* Whether all that the chunk goes to is compared with its digest by the caller. */
static bool is_unverified(const struct load *l, size_t item)
{
	for (size_t i = l->first[item]; i < l->first[item + 1]; i++)
		if (!l->places[l->parts[i].place].unverified)
			return false;
	return true;
}

/* The first of its parts has room for it; the others are copied from there. */
static void *find_room(void *arg, size_t item, size_t len_bytes)
{
	const struct load *l = arg;
	const struct load_part *part = &l->parts[l->first[item]];
	const struct chunks_place *p = &l->places[part->place];

	return p->room ? p->room(p->arg, part->part * CHUNK_BYTES_MAX, len_bytes) : NULL;
}

static int load_chunk(void *arg, const struct stored_chunk *c, struct brumate_error *err)
{
	struct load *l = arg;
	const char *why;
	const void *data =
		is_unverified(l, c->item) ? chunks_expand(c, &why) : chunks_check(c, &why);
	int r = 0;

	if (!data)
		return chunks_fail_chunk(l->m, c->record, why, err);
	for (size_t i = l->first[c->item]; r == 0 && i < l->first[c->item + 1]; i++)
		r = give(l, l->parts[i].place, l->parts[i].part, data, err);
	return r;
}

static int load_zeros(struct load *l, uint32_t place, struct brumate_error *err)
{
	const struct chunk_region *region = region_of(l, place);
	const uint32_t *chunks = l->m->table.parts + region->first;
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < chunk_parts(region->len_bytes); i++) {
		if (chunks[i] != CHUNK_ZERO)
			continue;
		r = tick(l) < 0 ? brumate_fail(err, ECANCELED, "stopped: %m")
				: give(l, place, i, NULL, err);
	}
	return r;
}

static int load_all(struct load *l, unsigned threads, struct brumate_error *err)
{
	struct chunks_task task = {
		.chunks = l->chunks,
		.n = l->n,
		.threads = threads,
		.fn = load_chunk,
		.room = find_room,
		.arg = l,
		.tick = tick,
		.tick_arg = l,
	};
	int r = 0;

	for (uint32_t k = 0; r == 0 && k < l->n_places; k++)
		r = load_zeros(l, k, err);
	return r < 0 ? r : chunks_read(l->m, &task, err);
}

static int fail_key(const struct chunks_reader *m, struct brumate_error *err)
{
	return brumate_fail(err, ENOKEY, "checkpoint %s: encrypted, and there is no key",
			    m->manifest->id);
}

int chunks_load_all(struct chunks_reader *m, const struct chunks_place *places, size_t n,
		    unsigned threads, bool (*cancelled)(void *arg), void *arg,
		    struct brumate_error *err)
{
	auto_(fini) struct load l = {
		.m = m, .places = places, .n_places = n, .cancelled = cancelled, .arg = arg
	};

	for (size_t k = 0; k < n; k++)
		if (places[k].index >= m->table.n_regions)
			return brumate_fail(err, EINVAL, "no region %zu", places[k].index);
	if (m->table.sealed && !m->key)
		return fail_key(m, err);
	int r = plan(&l);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	r = load_all(&l, threads, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->manifest->id) : 0;
}

/* ---- in an order ---- */

struct ordered {
	struct chunks_reader *m;
	const struct chunks_stream *stream;
	atomic_size_t n_filled;
	bool (*cancelled)(void *arg);
	void *arg;
};

static void ordered_stop(void *arg)
{
	const struct ordered *o = arg;

	o->stream->stop(o->stream->arg);
}

static int ordered_tick(void *arg)
{
	const struct ordered *o = arg;

	if (!o->cancelled || !o->cancelled(o->arg))
		return 0;
	o->stream->stop(o->stream->arg);
	return -ECANCELED;
}

static int ordered_admit(void *arg, size_t item, bool block)
{
	const struct ordered *o = arg;

	return o->stream->admit(o->stream->arg, item, block);
}

static void *ordered_room(void *arg, size_t item, size_t len_bytes)
{
	const struct ordered *o = arg;

	return len_bytes == CHUNK_BYTES ? o->stream->room(o->stream->arg, item) : NULL;
}

static int ordered_chunk(void *arg, const struct stored_chunk *c, struct brumate_error *err)
{
	struct ordered *o = arg;
	const struct chunks_stream *s = o->stream;
	const char *why;
	const void *data = s->unverified ? chunks_expand(c, &why) : chunks_check(c, &why);
	void *room = s->room(s->arg, c->item);

	if (!data)
		return chunks_fail_chunk(o->m, c->record, why, err);
	if (data != room)
		memcpy(room, data, c->record->len_bytes);
	/* That it is stopped is not an error of this thread's: another one may be about to tell why. */
	if (s->filled(s->arg, c->item) == 0)
		atomic_fetch_add(&o->n_filled, 1);
	return 0;
}

/* Finds the chunk of each part. */
static int find_chunks(const struct chunks_reader *m, const struct chunks_stream *s, uint32_t *ret)
{
	const struct chunk_table *t = &m->table;

	for (size_t i = 0; i < s->n; i++) {
		const struct chunks_part *p = &s->parts[i];

		if (!chunks_part_is_stored(m, p->region, p->part))
			return -EINVAL;
		ret[i] = t->parts[t->regions[p->region].first + p->part];
		if (t->chunks[ret[i]].len_bytes != CHUNK_BYTES)
			return -EINVAL;
	}
	return 0;
}

int chunks_load_stream(struct chunks_reader *m, const struct chunks_stream *s,
		       bool (*cancelled)(void *arg), void *arg, struct brumate_error *err)
{
	struct ordered o = { .m = m, .stream = s, .cancelled = cancelled, .arg = arg };
	auto_free uint32_t *chunks = calloc(s->n + 1, sizeof(*chunks));
	const struct chunks_task task = {
		.chunks = chunks,
		.n = s->n,
		.fn = ordered_chunk,
		.room = ordered_room,
		.admit = ordered_admit,
		.stop = ordered_stop,
		.arg = &o,
		.tick = ordered_tick,
		.tick_arg = &o,
	};

	if (!chunks)
		return brumate_fail(err, ENOMEM, "%m");
	if (m->source)
		return brumate_fail(err, EOPNOTSUPP, "packs are far: %m");
	int r = find_chunks(m, s, chunks);
	if (r < 0)
		return brumate_fail(err, -r, "parts of regions: %m");
	if (m->table.sealed && !m->key)
		return fail_key(m, err);
	r = chunks_read(m, &task, err);
	if (r == 0 && o.n_filled < s->n)
		r = brumate_fail(err, ECANCELED, "stopped: %m");
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->manifest->id) : 0;
}

bool chunks_part_is_stored(const struct chunks_reader *m, size_t index, uint64_t part)
{
	const struct chunk_table *t = &m->table;

	return index < t->n_regions && part < chunk_parts(t->regions[index].len_bytes) &&
	       t->parts[t->regions[index].first + part] != CHUNK_ZERO;
}

size_t chunks_repeated(const struct chunks_reader *m, const struct chunks_part *parts, size_t n,
		       size_t *ret_n)
{
	const struct chunk_table *t = &m->table;
	auto_free bool *seen = calloc(t->n_chunks + 1, sizeof(*seen));
	size_t repeated = 0;

	*ret_n = 0;
	for (size_t i = 0; seen && i < n; i++) {
		if (!chunks_part_is_stored(m, parts[i].region, parts[i].part))
			continue;
		bool *s = &seen[t->parts[t->regions[parts[i].region].first + parts[i].part]];
		repeated += *s;
		*s = true;
		++*ret_n;
	}
	return seen ? repeated : SIZE_MAX;
}

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
