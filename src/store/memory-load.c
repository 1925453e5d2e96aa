// SPDX-License-Identifier: MIT
/* Loading a region: its chunks are read once each, in the order of the disk, and go to all its parts. */
#include "store/memory-read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct load {
	struct memory_reader *m;
	uint64_t *order;   /* parts that are stored: chunk << 32 | part, ascending */
	uint32_t *chunks;  /* of those, each once */
	size_t *first;	   /* of each, its parts in order; one more for the end */
	size_t n_parts, n; /* of order, of chunks */
	uint64_t *zeros;   /* the other parts */
	size_t n_zeros;
	const struct chunk_region *region;
	memory_sink_fn sink;
	void *arg;
	bool (*cancelled)(void *arg);
};

static void fini(struct load *l)
{
	free(l->order);
	free(l->chunks);
	free(l->first);
	free(l->zeros);
}
DEFINE_AUTO_FINI(struct load, fini)

static int compare(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return left < right ? -1 : left > right;
}

static int plan(struct load *l)
{
	const uint32_t *parts = l->m->table.parts + l->region->first;
	size_t n = (size_t)chunk_parts(l->region->len_bytes);

	l->order = calloc(n + 1, sizeof(*l->order));
	l->zeros = calloc(n + 1, sizeof(*l->zeros));
	l->chunks = calloc(n + 1, sizeof(*l->chunks));
	l->first = calloc(n + 1, sizeof(*l->first));
	if (!l->order || !l->zeros || !l->chunks || !l->first)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		if (parts[i] == CHUNK_ZERO)
			l->zeros[l->n_zeros++] = i;
		else
			l->order[l->n_parts++] = (uint64_t)parts[i] << 32 | i;
	}
	qsort(l->order, l->n_parts, sizeof(*l->order), compare);
	for (size_t i = 0; i < l->n_parts; i++) {
		uint32_t chunk = (uint32_t)(l->order[i] >> 32);

		if (l->n && l->chunks[l->n - 1] == chunk)
			continue;
		l->first[l->n] = i;
		l->chunks[l->n++] = chunk;
	}
	l->first[l->n] = l->n_parts;
	return 0;
}

static int tick(void *arg)
{
	const struct load *l = arg;

	return l->cancelled && l->cancelled(l->arg) ? -ECANCELED : 0;
}

static int give(struct load *l, uint64_t part, const void *data, struct brumate_error *err)
{
	int r = l->sink(l->arg, part * CHUNK_BYTES_MAX, data,
			chunk_part_bytes(l->region->len_bytes, part));

	return r < 0 ? brumate_fail(err, -r, "what was read cannot be put in its place: %m") : 0;
}

static int load_chunk(void *arg, const struct memory_chunk *c, struct brumate_error *err)
{
	struct load *l = arg;
	const char *why;
	const void *data = memory_check(c, &why);
	int r = 0;

	if (!data)
		return memory_fail_chunk(l->m, c->record, why, err);
	for (size_t i = l->first[c->item]; r == 0 && i < l->first[c->item + 1]; i++)
		r = give(l, l->order[i] & UINT32_MAX, data, err);
	return r;
}

static int load_zeros(struct load *l, struct brumate_error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < l->n_zeros; i++)
		r = tick(l) < 0 ? brumate_fail(err, ECANCELED, "stopped: %m")
				: give(l, l->zeros[i], NULL, err);
	return r;
}

int memory_load(struct memory_reader *m, size_t index, unsigned threads, memory_sink_fn sink,
		bool (*cancelled)(void *arg), void *arg, struct brumate_error *err)
{
	auto_(fini) struct load l = { .m = m, .sink = sink, .arg = arg, .cancelled = cancelled };

	if (index >= m->table.n_regions)
		return brumate_fail(err, EINVAL, "no region %zu", index);
	if (m->table.sealed && !m->key)
		return brumate_fail(err, ENOKEY, "checkpoint %s: encrypted, and there is no key",
				    m->manifest->id);
	l.region = &m->table.regions[index];
	int r = plan(&l);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	struct memory_task task = {
		.chunks = l.chunks,
		.n = l.n,
		.threads = threads,
		.fn = load_chunk,
		.arg = &l,
		.tick = tick,
		.tick_arg = &l,
	};
	r = load_zeros(&l, err);
	if (r == 0)
		r = memory_read(m, &task, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", m->manifest->id) : 0;
}
