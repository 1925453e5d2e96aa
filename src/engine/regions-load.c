// SPDX-License-Identifier: MIT
/*
 * Device memory out of the store into a host copy. Raw chunks are read to where they belong. Digests are
 * compared by the GPU once the bytes are there, which costs nothing, where all of them are known; here
 * otherwise.
 */
#include "engine/regions.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/huge-pages.h"
#include "datapath/vault.h"
#include "engine/spilled.h"
#include "chunks/chunks.h"

struct view {
	char *base;
	bool clears; /* it may hold something where zeros belong */
	uint64_t len_bytes, segment_bytes;
	struct spilled *spilled; /* what is not mapped of it; NULL: all is */
};

static void view_fini(struct view *v)
{
	spilled_free(v->spilled);
	if (v->base)
		munmap(v->base, v->len_bytes);
}

/* The segments as one run of memory, but for those on a disk. */
static int view_open(struct view *ret, const struct host_copy *copy, struct brumate_error *err)
{
	const size_t n = host_copy_n_segments(copy);
	uint64_t last = copy->total_bytes - (n - 1) * copy->segment_bytes;
	char *base = huge_pages_reserve(copy->total_bytes);

	if (!base)
		return brumate_fail(err, errno, "mmap: %m");
	*ret = (struct view){ .base = base,
			      .len_bytes = copy->total_bytes,
			      .segment_bytes = copy->segment_bytes };
	int r = spilled_open(&ret->spilled, copy, err);
	for (size_t i = 0; r == 0 && i < n; i++) {
		uint64_t part = i + 1 < n ? copy->segment_bytes : last;

		if (spilled_has(ret->spilled, i))
			continue;
		if (mmap(base + i * copy->segment_bytes, part, PROT_READ | PROT_WRITE,
			 MAP_SHARED | MAP_FIXED, copy->segments[i], 0) == MAP_FAILED) {
			/* Which may leave nothing there, and by now another thread's memory. */
			ret->base = NULL;
			return brumate_fail(err, errno, "host copy: %m");
		}
	}
	return r;
}

/* Bytes that lie in one segment: those of @data, which may be there already, or zeros. */
static int view_write_part(const struct view *v, uint64_t offset, const char *data,
			   size_t len_bytes)
{
	if (spilled_has(v->spilled, (size_t)(offset / v->segment_bytes)))
		return spilled_write(v->spilled, offset, data, len_bytes);
	if (data && data != v->base + offset)
		memcpy(v->base + offset, data, len_bytes);
	else if (!data && v->clears)
		memset(v->base + offset, 0, len_bytes);
	return 0;
}

static int view_write(const struct view *v, uint64_t offset, const char *data, size_t len_bytes)
{
	int r = 0;

	for (size_t done = 0; r == 0 && done < len_bytes;) {
		uint64_t part = v->segment_bytes - (offset + done) % v->segment_bytes;

		if (part > len_bytes - done)
			part = len_bytes - done;
		r = view_write_part(v, offset + done, data ? data + done : NULL, part);
		done += part;
	}
	return r;
}

struct sink {
	const struct view *view;
	uint64_t offset, len_bytes; /* where the region is in it */
};

static int take_bytes(void *arg, uint64_t offset, const void *data, size_t len_bytes)
{
	struct sink *s = arg;

	if (offset > s->len_bytes || len_bytes > s->len_bytes - offset)
		return -EBADMSG;
	return view_write(s->view, s->offset + offset, data, len_bytes);
}

/* Where bytes of a region are read straight to: memory, but for what is on a disk. */
static void *room_for(void *arg, uint64_t offset, size_t len_bytes)
{
	const struct sink *s = arg;
	const struct view *v = s->view;
	uint64_t at = s->offset + offset;

	if (offset > s->len_bytes || len_bytes > s->len_bytes - offset ||
	    (uintptr_t)(v->base + at) % (uintptr_t)sysconf(_SC_PAGESIZE) ||
	    spilled_has(v->spilled, (size_t)(at / v->segment_bytes)) ||
	    spilled_has(v->spilled, (size_t)((at + len_bytes - 1) / v->segment_bytes)))
		return NULL;
	return v->base + at;
}

/* Of region @i, which is at @at of the copy: what its checkpoint says. 0: not known. */
static int take_digests(const struct host_copy *copy, const struct chunks_reader *reader, size_t i,
			uint64_t at, uint64_t len_bytes)
{
	if (!copy->digests || at % CHUNK_BYTES_MAX || len_bytes % CHUNK_BYTES_MAX)
		return 0;
	return chunks_digests(reader, i, digest_table_digests(copy->digests) + at / CHUNK_BYTES_MAX,
			      (size_t)(len_bytes / CHUNK_BYTES_MAX));
}

/* Runs of a host copy that will be written whole, or nearly so: beside the threads that write them a thread
 * makes them of large pages, which are there sooner and gone sooner. */
struct filler {
	const struct view *view;
	const struct host_copy *copy;
	struct run {
		uint64_t at, len_bytes;
	} * runs;
	size_t n;
	struct digest zero;
	pthread_t thread;
	bool started;
	atomic_bool stop;
};

/* Whether the file has nothing there yet. */
static bool has_hole(int fd, uint64_t at, uint64_t len_bytes)
{
	off_t data = lseek(fd, (off_t)at, SEEK_DATA);

	return data < 0 ? errno == ENXIO : (uint64_t)data >= at + len_bytes;
}

static void *fill(void *arg)
{
	struct filler *f = arg;
	const uint64_t segment_bytes = f->copy->segment_bytes;

	for (size_t i = 0; i < f->n; i++) {
		const struct run *run = &f->runs[i];

		for (uint64_t done = 0, part; done < run->len_bytes && !f->stop; done += part) {
			uint64_t at = run->at + done, inside = at % segment_bytes;
			size_t segment = (size_t)(at / segment_bytes);

			part = segment_bytes - inside;
			part = part < run->len_bytes - done ? part : run->len_bytes - done;
			if (!spilled_has(f->view->spilled, segment) &&
			    has_hole(f->copy->segments[segment], inside, part))
				huge_pages_fill(f->view->base + at, part, false);
		}
	}
	return NULL;
}

/* Half of it at least has to be worth it; @digests of its @n chunks. */
static void filler_add(struct filler *f, uint64_t at, uint64_t len_bytes,
		       const struct digest *digests)
{
	size_t n = (size_t)(len_bytes / CHUNK_BYTES_MAX), zeros = 0;

	for (size_t i = 0; i < n; i++)
		zeros += !memcmp(&digests[i], &f->zero, sizeof(f->zero));
	if (zeros <= n / 2)
		f->runs[f->n++] = (struct run){ at, len_bytes };
}

static void filler_start(struct filler *f)
{
	f->started = f->n && pthread_create(&f->thread, NULL, fill, f) == 0;
}

static int filler_init(struct filler *f, size_t n_max, const struct view *view,
		       const struct host_copy *copy)
{
	*f = (struct filler){ .view = view, .copy = copy };
	f->runs = calloc(n_max + 1, sizeof(*f->runs));
	return f->runs ? chunk_digest_zeros(&f->zero) : -ENOMEM;
}

static void filler_fini(struct filler *f)
{
	f->stop = true;
	if (f->started)
		pthread_join(f->thread, NULL);
	free(f->runs);
}

/* What is loaded, and into what. */
struct load {
	struct op *op;
	const struct host_copy *copy;
	const struct regions_load *how;
	struct chunks_reader *reader;
	struct view view;
	struct filler filler;
	bool known; /* all digests are */
};

static void load_fini(struct load *l)
{
	filler_fini(&l->filler);
	view_fini(&l->view);
	chunks_reader_free(l->reader);
}
DEFINE_AUTO_FINI(struct load, load_fini)

static int load_open(struct load *l, struct brumate_error *err)
{
	const size_t n = l->op->image.manifest.memory.n_regions;
	int r = store_chunks_open(&l->reader, &l->op->image, err);

	if (r == 0)
		r = view_open(&l->view, l->copy, err);
	if (r < 0)
		return r;
	r = filler_init(&l->filler, n, &l->view, l->copy);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

/* Finds what is known of region @i. */
static int load_look(struct load *l, size_t i, struct brumate_error *err)
{
	uint64_t at = l->how->places[i], len = l->op->image.manifest.memory.regions[i].len_bytes;

	if (at == UINT64_MAX)
		return 0;
	int known = take_digests(l->copy, l->reader, i, at, len);
	if (known < 0)
		return brumate_fail(err, -known, "region %zu: digests: %m", i);
	l->known = l->known && known;
	if (known)
		filler_add(&l->filler, at, len,
			   digest_table_digests(l->copy->digests) + at / CHUNK_BYTES_MAX);
	return 0;
}

/* All at once: what several regions have in common is read once, and none waits for the end of another. */
static int load_all(struct load *l, bool unverified, struct brumate_error *err)
{
	const struct manifest *m = &l->op->image.manifest;
	auto_free struct chunks_place *places = calloc(m->memory.n_regions + 1, sizeof(*places));
	auto_free struct sink *sinks = calloc(m->memory.n_regions + 1, sizeof(*sinks));
	size_t n = 0;

	if (!places || !sinks)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->memory.n_regions; i++) {
		if (l->how->places[i] == UINT64_MAX)
			continue;
		sinks[n] = (struct sink){ &l->view, l->how->places[i],
					  m->memory.regions[i].len_bytes };
		places[n] = (struct chunks_place){ i, take_bytes, &sinks[n], room_for, unverified };
		n++;
	}
	return chunks_load_all(l->reader, places, n, 0, l->how->cancelled, l->how->arg, err);
}

int regions_load(struct op *op, const struct host_copy *copy, const struct regions_load *how,
		 struct brumate_error *err)
{
	auto_(load_fini) struct load l = { .op = op, .copy = copy, .how = how, .known = true };
	int r = load_open(&l, err);

	for (size_t i = 0; r == 0 && i < op->image.manifest.memory.n_regions; i++)
		r = load_look(&l, i, err);
	if (r < 0)
		return r;
	bool unverified = !how->verify && l.known && copy->digests;
	/* The GPU makes zeros of its own where digests say so. */
	l.view.clears = how->as_is && !unverified;
	filler_start(&l.filler);
	r = load_all(&l, unverified, err);
	if (r < 0)
		return r;
	if (copy->digests)
		digest_table_set_whole(copy->digests, l.known);
	return unverified;
}
