// SPDX-License-Identifier: MIT
/* Device memory between host copies and the store. See regions.h. */
#include "engine/regions.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/huge-pages.h"
#include "engine/held.h"
#include "engine/spilled.h"
#include "store/memory.h"

/* ---- out ---- */

static int zeros_read(void *arg, uint64_t offset, void *buf, size_t len_bytes)
{
	(void)arg;
	(void)offset;
	memset(buf, 0, len_bytes);
	return 0;
}

/* Whether a segment in memory has no pages: it reads as zeros, and to read it would make some. */
static bool is_blank(const struct data_copy *copy, size_t segment)
{
	struct stat st;

	return fstat(copy->segments[segment], &st) == 0 && st.st_blocks == 0;
}

/* Bytes at @offset of the host copy, which lie in one segment. */
static int save_region(struct op *op, const struct manifest_region *region,
		       const struct data_copy *copy, uint64_t offset, struct brumate_error *err)
{
	size_t segment = (size_t)(offset / copy->segment_bytes);

	if (!spilled_has(op->spilled, segment) && is_blank(copy, segment))
		return memory_add_from(op->memory, region, zeros_read, NULL, err);
	if (!spilled_has(op->spilled, segment))
		return memory_add(op->memory, region, copy->segments[segment],
				  offset % copy->segment_bytes, err);
	void *source = spilled_source(op->spilled, offset);
	if (!source)
		return brumate_fail(err, ENOMEM, "%m");
	return memory_add_from(op->memory, region, spilled_source_read, source, err);
}

static int save_piece(struct op *op, const struct held_piece *p, uint64_t offset,
		      const struct data_copy *copy, struct brumate_error *err)
{
	struct proc_info info;
	int r = proc_read(&info, p->process.pid, err);

	for (uint64_t done = 0; r == 0 && done < p->len_bytes;) {
		uint64_t at = (offset + done) % copy->segment_bytes;
		uint64_t len = p->len_bytes - done;
		struct manifest_region region = { .kind = MANIFEST_REGION_DEVICE,
						  .pid = info.inner_pid,
						  .id = p->id,
						  .va = p->va + done };

		if (len > copy->segment_bytes - at)
			len = copy->segment_bytes - at;
		region.len_bytes = len;
		snprintf(region.gpu, sizeof(region.gpu), "%s", p->gpu);
		r = save_region(op, &region, copy, offset + done, err);
		done += len;
	}
	return r;
}

int regions_save(struct op *op, const struct data_copy *copy, struct brumate_error *err)
{
	const struct held *h = op->held;
	auto_free struct data_piece *pieces = held_data_pieces(h);
	struct spilled *spilled;

	if (!pieces)
		return brumate_fail(err, ENOMEM, "%m");
	int r = spilled_open(&spilled, copy, err);
	if (r == 0 && spilled) {
		spilled_chain(spilled, op->spilled); /* the store may still read from that */
		op->spilled = spilled;
	}
	for (size_t i = 0; r == 0 && i < h->n_pieces; i++)
		r = save_piece(op, &h->pieces[i], data_offset(pieces, i), copy, err);
	return r;
}

/* ---- in ---- */

static bool goes_on(const struct held_piece *p, const struct manifest_region *r)
{
	return p->process.pid == r->pid && p->id == r->id && p->va + p->len_bytes == r->va;
}

int regions_find(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->image.manifest;
	struct held *h = op->held;

	if (!h)
		return 0;
	held_clear(h, op->job);
	h->pieces = calloc(m->memory.n_regions + 1, sizeof(*h->pieces));
	if (!h->pieces)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->memory.n_regions; i++) {
		const struct manifest_region *r = &m->memory.regions[i];
		struct held_piece *last = h->n_pieces ? &h->pieces[h->n_pieces - 1] : NULL;

		if (r->kind != MANIFEST_REGION_DEVICE)
			continue;
		if (last && goes_on(last, r)) {
			last->len_bytes += r->len_bytes;
			continue;
		}
		last = &h->pieces[h->n_pieces++];
		*last = (struct held_piece){ .process = { .pid = r->pid },
					     .id = r->id,
					     .va = r->va,
					     .len_bytes = r->len_bytes,
					     .fd = -1 };
		memcpy(last->gpu, r->gpu, sizeof(last->gpu));
	}
	return 0;
}

struct view {
	char *base;
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
static int view_open(struct view *ret, const struct data_copy *copy, struct brumate_error *err)
{
	const size_t n = data_copy_parts(copy);
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

/* Bytes that lie in one segment. Of zeros what is in memory has enough: it was made for this, of them. */
static int view_write_part(const struct view *v, uint64_t offset, const char *data,
			   size_t len_bytes)
{
	if (spilled_has(v->spilled, (size_t)(offset / v->segment_bytes)))
		return spilled_write(v->spilled, offset, data, len_bytes);
	if (data)
		memcpy(v->base + offset, data, len_bytes);
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

/* Which piece region @r is of, and where that is in the host copy. */
static uint64_t place_of(const struct held *h, const struct data_piece *pieces,
			 const struct manifest_region *r)
{
	for (size_t i = 0; i < h->n_pieces; i++)
		if (h->pieces[i].process.pid == r->pid && h->pieces[i].id == r->id)
			return data_offset(pieces, i) + (r->va - h->pieces[i].va);
	return UINT64_MAX;
}

/* Of region @i, which is at @at of the copy: what its checkpoint says. 0: not known. */
static int take_digests(const struct data_copy *copy, const struct memory_reader *reader, size_t i,
			uint64_t at, uint64_t len_bytes)
{
	if (!copy->digests || at % CHUNK_BYTES_MAX || len_bytes % CHUNK_BYTES_MAX)
		return 0;
	return memory_digests(reader, i, digest_table_digests(copy->digests) + at / CHUNK_BYTES_MAX,
			      (size_t)(len_bytes / CHUNK_BYTES_MAX));
}

/* Runs of a host copy that will be written whole, or nearly so: beside the threads that write them a thread
 * makes them of large pages, which are there sooner and gone sooner. */
struct filler {
	const struct view *view;
	const struct data_copy *copy;
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
		       const struct data_copy *copy)
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
	const struct data_copy *copy;
	struct data_piece *pieces;
	struct memory_reader *reader;
	struct view view;
	struct filler filler;
	uint64_t *places; /* of regions; UINT64_MAX: it is no device memory */
};

static void load_fini(struct load *l)
{
	filler_fini(&l->filler);
	view_fini(&l->view);
	memory_reader_free(l->reader);
	free(l->pieces);
	free(l->places);
}
DEFINE_AUTO_FINI(struct load, load_fini)

static int load_open(struct load *l, struct brumate_error *err)
{
	const size_t n = l->op->image.manifest.memory.n_regions;
	int r = memory_open(&l->reader, &l->op->image, err);

	if (r < 0)
		return r;
	l->pieces = held_data_pieces(l->op->held);
	l->places = calloc(n + 1, sizeof(*l->places));
	if (!l->pieces || !l->places)
		return brumate_fail(err, ENOMEM, "%m");
	r = view_open(&l->view, l->copy, err);
	if (r < 0)
		return r;
	r = filler_init(&l->filler, n, &l->view, l->copy);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

/* Finds where region @i goes to, and what is known of it. 1: its digests are. */
static int load_look(struct load *l, size_t i, struct brumate_error *err)
{
	const struct manifest_region *region = &l->op->image.manifest.memory.regions[i];

	l->places[i] = UINT64_MAX;
	if (region->kind != MANIFEST_REGION_DEVICE)
		return 1;
	uint64_t at = place_of(l->op->held, l->pieces, region);
	if (at > l->view.len_bytes || region->len_bytes > l->view.len_bytes - at)
		return brumate_fail(err, EBADMSG, "region %zu lies outside its piece", i);
	l->places[i] = at;
	int known = take_digests(l->copy, l->reader, i, at, region->len_bytes);
	if (known < 0)
		return brumate_fail(err, -known, "region %zu: digests: %m", i);
	if (known)
		filler_add(&l->filler, at, region->len_bytes,
			   digest_table_digests(l->copy->digests) + at / CHUNK_BYTES_MAX);
	return known;
}

/* All at once: what several regions have in common is read once, and none waits for the end of another. */
static int load_all(struct load *l, bool (*cancelled)(void *arg), void *arg,
		    struct brumate_error *err)
{
	const struct manifest *m = &l->op->image.manifest;
	auto_free struct memory_place *places = calloc(m->memory.n_regions + 1, sizeof(*places));
	auto_free struct sink *sinks = calloc(m->memory.n_regions + 1, sizeof(*sinks));
	size_t n = 0;

	if (!places || !sinks)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->memory.n_regions; i++) {
		if (l->places[i] == UINT64_MAX)
			continue;
		sinks[n] = (struct sink){ &l->view, l->places[i], m->memory.regions[i].len_bytes };
		places[n] = (struct memory_place){ i, take_bytes, &sinks[n] };
		n++;
	}
	return memory_load_all(l->reader, places, n, 0, cancelled, arg, err);
}

int regions_load(struct op *op, const struct data_copy *copy, bool (*cancelled)(void *arg),
		 void *arg, struct brumate_error *err)
{
	const struct manifest *m = &op->image.manifest;
	auto_(load_fini) struct load l = { .op = op, .copy = copy };
	bool whole = true; /* all digests are known */
	int r = load_open(&l, err);

	for (size_t i = 0; r >= 0 && i < m->memory.n_regions; i++) {
		r = load_look(&l, i, err);
		whole = whole && r == 1;
	}
	if (r < 0)
		return r;
	filler_start(&l.filler);
	r = load_all(&l, cancelled, arg, err);
	if (r == 0 && copy->digests)
		digest_table_set_whole(copy->digests, whole);
	return r;
}

/* ---- the restored processes ---- */

static int compare(const struct held *h, const struct op_agent *a, size_t first, size_t n,
		   struct brumate_error *err)
{
	for (size_t i = 0; n == a->n_pieces && i < n; i++) {
		const struct held_piece *p = NULL;

		for (size_t k = first; k < first + n && !p; k++)
			if (h->pieces[k].id == a->pieces[i].id)
				p = &h->pieces[k];
		if (!p || p->va != a->pieces[i].va || p->len_bytes != a->pieces[i].len_bytes)
			n = a->n_pieces + 1;
	}
	if (n == a->n_pieces)
		return 0;
	return brumate_fail(
		err, EBADMSG,
		"process %d: its agent wants %zu pieces of device memory, which are not "
		"those of the checkpoint",
		a->agent.id.pid, a->n_pieces);
}

int regions_assign(struct op *op, struct brumate_error *err)
{
	struct held *h = op->held;
	int r = 0;

	for (size_t i = 0; h && r == 0 && i < op->n_agents; i++) {
		const struct op_agent *a = &op->agents[i];
		struct proc_info info;
		size_t first;

		r = proc_read(&info, a->agent.id.pid, err);
		for (size_t k = 0; r == 0 && k < h->n_pieces; k++)
			if (!h->pieces[k].process.start_ticks &&
			    h->pieces[k].process.pid == info.inner_pid)
				h->pieces[k].process = a->agent.id;
		size_t n = held_find(h, a->agent.id, &first);
		if (r == 0)
			r = compare(h, a, first, n, err);
	}
	for (size_t k = 0; h && r == 0 && k < h->n_pieces; k++)
		if (!h->pieces[k].process.start_ticks)
			r = brumate_fail(err, EIO,
					 "process %d of the checkpoint has device memory, but no "
					 "agent to take it",
					 h->pieces[k].process.pid);
	return r;
}
