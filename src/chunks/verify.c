// SPDX-License-Identifier: MIT
/* Comparing every chunk of a checkpoint with its digests, on all cores. */
#include "chunks/reader.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "chunks/files.h"

struct damage {
	size_t chunk;
	const char *why; /* of a literal */
};

struct verify {
	struct chunks_reader *m;
	bool all;   /* go on after the first damage */
	bool *skip; /* packs whose files are known to be wrong */
	atomic_uint_fast64_t done_bytes;
	chunks_progress_fn progress;
	void *progress_arg;
	uint64_t total_bytes;
	pthread_mutex_t lock;
	struct damage *found; /* under lock */
	size_t n_found;
};

static int note(struct verify *v, size_t chunk, const char *why)
{
	struct damage *found;

	pthread_mutex_lock(&v->lock);
	found = array_room(v->found, v->n_found, sizeof(*found));
	if (found) {
		v->found = found;
		v->found[v->n_found++] = (struct damage){ chunk, why };
	}
	pthread_mutex_unlock(&v->lock);
	return found ? 0 : -ENOMEM;
}

static int check(void *arg, const struct stored_chunk *c, struct brumate_error *err)
{
	struct verify *v = arg;
	const char *why;

	atomic_fetch_add(&v->done_bytes, chunk_padded(c->record->stored_bytes));
	if ((v->all && v->skip[c->record->pack]) || chunks_check_stored(c, &why))
		return 0;
	if (!v->all)
		return chunks_fail_chunk(v->m, c->record, why, err);
	int r = note(v, (size_t)(c->record - v->m->table.chunks), why);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static int tick(void *arg)
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
		/* The path comes by itself. */
		tell(arg, &(struct chunks_damage){ path, c, err.text + strlen(path) + 2 });
	}
}

/* Marks packs that are not there or not whole: others tell of them. */
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

static void fini(struct verify *v)
{
	free(v->found);
	free(v->skip);
	pthread_mutex_destroy(&v->lock);
}
DEFINE_AUTO_FINI(struct verify, fini)

int chunks_verify(int dir_fd, const struct manifest *manifest, chunks_damage_fn tell,
		  void *tell_arg, chunks_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(chunks_reader_free) struct chunks_reader *m = NULL;
	int r = chunks_open(&m, dir_fd, manifest, NULL, NULL, err);

	if (r == -ENOENT && err)
		*err = BRUMATE_ERROR_NONE; /* nothing to verify */
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	auto_(fini) struct verify v = {
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
	struct chunks_task task = {
		.n = m->table.n_chunks, .fn = check, .arg = &v, .tick = tick, .tick_arg = &v
	};
	r = chunks_read(m, &task, err);
	if (r == 0)
		r = tick(&v); /* all of it is done */
	if (r == 0 && tell)
		tell_all(&v, tell, tell_arg);
	return r < 0 ? r : (int)v.n_found;
}
