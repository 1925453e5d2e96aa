// SPDX-License-Identifier: MIT
/*
 * Compares chunks with their digests: every chunk of a checkpoint on all cores, and those of packs that pass in a
 * stream; and compares the tables of two checkpoints with each other.
 */
#include "chunks/reader.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "chunks/codec.h"
#include "chunks/files.h"

struct damage {
	size_t chunk;
	const char *why; /* a literal */
};

struct verify {
	struct chunks_reader *m;
	bool all;   /* continue after the first damage */
	bool *skip; /* packs whose files are known to be wrong */
	atomic_uint_fast64_t done_bytes;
	chunks_progress_fn progress;
	void *progress_arg;
	uint64_t total_bytes;
	pthread_mutex_t lock;
	struct damage *found; /* under lock */
	size_t n_found;
};

static int note_damage(struct verify *v, size_t chunk, const char *why)
{
	pthread_mutex_lock(&v->lock);
	int r = array_add(v->found, v->n_found, (struct damage){ chunk, why });
	pthread_mutex_unlock(&v->lock);
	return r;
}

static int check_chunk(void *arg, const struct stored_chunk *c, struct brumate_error *err)
{
	struct verify *v = arg;
	const char *why;

	atomic_fetch_add(&v->done_bytes, chunk_padded(c->record->stored_bytes));
	if ((v->all && v->skip[c->record->pack]) || chunks_check_stored(c, &why))
		return 0;
	if (!v->all)
		return chunks_fail_chunk(v->m, c->record, why, err);
	int r = note_damage(v, (size_t)(c->record - v->m->table.chunks), why);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static int report_progress(void *arg)
{
	const struct verify *v = arg;

	return v->progress
		       ? v->progress(v->progress_arg, atomic_load(&v->done_bytes), v->total_bytes)
		       : 0;
}

static int by_chunk(const void *a, const void *b)
{
	size_t left = ((const struct damage *)a)->chunk, right = ((const struct damage *)b)->chunk;

	return left < right ? -1 : left > right;
}

static void tell_all(struct verify *v, chunks_damage_fn tell, void *arg)
{
	if (v->n_found)
		qsort(v->found, v->n_found, sizeof(*v->found), by_chunk);
	for (size_t i = 0; i < v->n_found; i++) {
		const struct chunk_record *c = &v->m->table.chunks[v->found[i].chunk];
		const char *path = v->m->manifest->memory.packs[c->pack].path;
		struct brumate_error err = BRUMATE_ERROR_NONE;

		chunks_fail_chunk(v->m, c, v->found[i].why, &err);
		/* The text begins with the path and ": ", and the path is passed separately. */
		tell(arg, &(struct chunks_damage){ path, c, err.text + strlen(path) + 2 });
	}
}

/* Marks packs that are missing or incomplete: other checks report them. */
static int mark_packs(struct verify *v)
{
	const struct manifest *m = v->m->manifest;

	v->skip = calloc(m->memory.n_packs + 1, sizeof(*v->skip));
	if (!v->skip)
		return -ENOMEM;
	for (size_t i = 0; i < m->memory.n_packs; i++) {
		struct stat st;
		auto_close int fd = files_open(v->m->dir_fd, m->memory.packs[i].path, &st);

		v->skip[i] = fd < 0 || (uint64_t)st.st_size != m->memory.packs[i].len_bytes;
	}
	return 0;
}

static void verify_fini(struct verify *v)
{
	free(v->found);
	free(v->skip);
	pthread_mutex_destroy(&v->lock);
}
DEFINE_AUTO_FINI(struct verify, verify_fini)

int chunks_verify(int dir_fd, const struct manifest *manifest, chunks_damage_fn tell,
		  void *tell_arg, chunks_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(chunks_reader_free) struct chunks_reader *m = NULL;
	int r = chunks_open(&m, dir_fd, manifest, NULL, NULL, err);

	if (r == -ENOENT && err)
		*err = BRUMATE_ERROR_NONE; /* nothing to verify */
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	auto_(verify_fini) struct verify v = {
		.m = m,
		.all = tell,
		.progress = progress,
		.progress_arg = arg,
		.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	for (size_t i = 0; i < manifest->memory.n_packs; i++)
		v.total_bytes += manifest->memory.packs[i].len_bytes;
	if (mark_packs(&v) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	struct chunks_task task = { .n = m->table.n_chunks,
				    .fn = check_chunk,
				    .arg = &v,
				    .tick = report_progress,
				    .tick_arg = &v };
	r = chunks_read(m, &task, err);
	if (r == 0)
		r = report_progress(&v); /* all is done */
	if (r == 0 && tell)
		tell_all(&v, tell, tell_arg);
	return r < 0 ? r : (int)v.n_found;
}

/* ---- packs in a stream ---- */

struct pack_check {
	struct chunks_reader *reader;
	struct codec *codec;
	const struct chunk_record *next; /* the next chunk */
	size_t have;
	uint8_t room[CHUNK_BYTES_MAX + CHUNK_ALIGN_BYTES];
};

int pack_check_new(struct pack_check **ret, int dir_fd, const struct manifest *m,
		   struct brumate_error *err)
{
	auto_(pack_check_free) struct pack_check *c = calloc(1, sizeof(*c));

	if (!c || codec_new(&c->codec) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = chunks_open(&c->reader, dir_fd, m, NULL, NULL, err);
	if (r < 0)
		return r;
	*ret = take_ptr(&c);
	return 0;
}

void pack_check_free(struct pack_check *c)
{
	if (!c)
		return;
	chunks_reader_free(c->reader);
	codec_free(c->codec);
	free(c);
}

void pack_check_begin(struct pack_check *c, size_t index)
{
	size_t n;

	c->next = chunk_table_pack(&c->reader->table, (uint32_t)index, &n);
	c->have = 0;
}

int pack_check_feed(struct pack_check *c, const void *buf, size_t len_bytes,
		    struct brumate_error *err)
{
	const uint8_t *from = buf;
	const char *why;

	while (len_bytes) {
		size_t want = chunk_padded(c->next->stored_bytes) - c->have;
		size_t n = want < len_bytes ? want : len_bytes;

		memcpy(c->room + c->have, from, n);
		c->have += n;
		from += n;
		len_bytes -= n;
		if (n < want)
			break;
		struct stored_chunk chunk = {
			.reader = c->reader, .record = c->next, .stored = c->room, .codec = c->codec
		};
		if (!chunks_check_stored(&chunk, &why))
			return chunks_fail_chunk(c->reader, c->next, why, err);
		c->next++;
		c->have = 0;
	}
	return 0;
}

/* ---- two checkpoints ---- */

static int by_digest(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct digest));
}

/* Digests of the chunks of @t, sorted. Owned; NULL if out of memory. */
static struct digest *digests_of(const struct chunk_table *t)
{
	struct digest *digests = calloc(t->n_chunks + 1, sizeof(*digests));

	for (size_t i = 0; digests && i < t->n_chunks; i++)
		digests[i] = t->chunks[i].digest;
	if (digests && t->n_chunks)
		qsort(digests, t->n_chunks, sizeof(*digests), by_digest);
	return digests;
}

static int compare_tables(struct chunks_common *ret, const struct chunk_table *from,
			  const struct chunk_table *to)
{
	struct chunks_common c = { 0 };
	auto_free struct digest *digests = digests_of(from);
	/* Counts each chunk once, by its stored size; unused chunks do not count. */
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

	return compare_tables(ret, from ? &from->table : &none, to ? &to->table : &none);
}
