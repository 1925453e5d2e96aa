// SPDX-License-Identifier: MIT
/* Device memory inside a checkpoint. See device-image.h. */
#include "engine/device-image.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "datapath/spilled.h"
#include "chunks/chunks.h"
#include "wire/transfer-packets.h"

/* ---- out ---- */

static int zeros_read(void *arg, uint64_t offset, void *buf, size_t len_bytes)
{
	memset(buf, 0, len_bytes);
	return 0;
}

/* Whether a segment in memory has no pages: it reads as zeros, and to read it would make some. */
static bool is_blank(const struct host_copy *copy, size_t segment)
{
	struct stat st;

	return fstat(copy->segments[segment], &st) == 0 && st.st_blocks == 0;
}

/* What is saved of a host copy: from @start to before @end. */
struct extent {
	const struct host_copy *copy;
	uint64_t start, end;
	const struct digest *digests; /* of all chunks of the copy; NULL: not known */
};

static int save_memory(struct device_image_writer *w, const struct manifest_region *region,
		       const struct extent *x, uint64_t offset, struct brumate_error *err)
{
	int fd = x->copy->segments[offset / x->copy->segment_bytes];
	uint64_t inside = offset % x->copy->segment_bytes;

	if (!x->digests || offset % CHUNK_BYTES_MAX || region->len_bytes % CHUNK_BYTES_MAX)
		return chunks_add(w->chunks, region, fd, inside, err);
	return chunks_add_known(w->chunks, region, fd, inside,
				x->digests + offset / CHUNK_BYTES_MAX, err);
}

/* Bytes at @offset of the host copy, which lie in one segment. */
static int save_region(struct device_image_writer *w, const struct manifest_region *region,
		       const struct extent *x, uint64_t offset, struct brumate_error *err)
{
	size_t segment = (size_t)(offset / x->copy->segment_bytes);

	if (!spilled_has(w->spilled, segment) && is_blank(x->copy, segment))
		return chunks_add_from(w->chunks, region, zeros_read, NULL, err);
	if (!spilled_has(w->spilled, segment))
		return save_memory(w, region, x, offset, err);
	void *source = spilled_source(w->spilled, offset);
	if (!source)
		return brumate_fail(err, ENOMEM, "%m");
	return chunks_add_from(w->chunks, region, spilled_source_read, source, err);
}

/* What of a piece, which is at @offset of the host copy, lies in @x. */
static int save_piece(struct device_image_writer *w, const struct vault_piece *p, uint64_t offset,
		      const struct extent *x, struct brumate_error *err)
{
	const uint64_t segment_bytes = x->copy->segment_bytes;
	uint64_t at = offset > x->start ? offset : x->start;
	uint64_t end = offset + p->len_bytes < x->end ? offset + p->len_bytes : x->end;
	struct proc_info info = { .inner_pid = p->inner_pid };
	int r = at < end && !p->inner_pid ? proc_read(&info, p->process.pid, err) : 0;

	while (r == 0 && at < end) {
		uint64_t room = segment_bytes - at % segment_bytes;
		struct manifest_region region = { .kind = MANIFEST_REGION_DEVICE,
						  .pid = info.inner_pid,
						  .id = p->id,
						  .va = p->va + (at - offset),
						  .len_bytes = room < end - at ? room : end - at };

		snprintf(region.gpu, sizeof(region.gpu), "%s", p->gpu);
		r = save_region(w, &region, x, at, err);
		at += region.len_bytes;
	}
	return r;
}

int device_image_save(void *writer, const struct host_copy *copy, uint64_t start, uint64_t end,
		      const struct digest *digests, struct brumate_error *err)
{
	const struct extent x = { copy, start, end, digests };
	struct device_image_writer *w = writer;
	struct spilled *spilled;
	uint64_t offset = 0;
	int r = spilled_open(&spilled, copy, err);

	if (r == 0 && spilled) {
		spilled_chain(spilled, w->spilled); /* the store may still read from that */
		w->spilled = spilled;
	}
	for (size_t i = 0; r == 0 && i < w->vault->n_pieces && offset < end; i++) {
		r = save_piece(w, &w->vault->pieces[i], offset, &x, err);
		offset = transfer_next(offset, w->vault->pieces[i].len_bytes);
	}
	if (r == 0 && offset < end)
		return brumate_fail(err, EIO,
				    "device memory was copied that belongs to no process");
	return r;
}

void device_image_writer_fini(struct device_image_writer *w)
{
	spilled_free(w->spilled);
	*w = (struct device_image_writer){ 0 };
}

/* ---- in: where what of the image belongs ---- */

static bool goes_on(const struct vault_piece *p, const struct manifest_region *r)
{
	return p->process.pid == r->pid && p->id == r->id && p->va + p->len_bytes == r->va;
}

/* The process that a region is of, which is not there yet. One that was killed after it was saved, and before CRIU
 * froze the others, never will be; but those may have its memory mapped. */
static struct proc_id process_of(const struct manifest *m, const struct manifest_region *r)
{
	for (size_t i = 0; i < m->n_processes; i++)
		if (m->processes[i].pid == r->pid)
			return (struct proc_id){ .pid = r->pid };
	return (struct proc_id){ r->pid, VAULT_ENDED_TICKS };
}

/* Fills the vault, which is empty, with pieces without fds. */
static int find_pieces(struct vault *v, const struct manifest *m, struct brumate_error *err)
{
	v->pieces = calloc(m->memory.n_regions + 1, sizeof(*v->pieces));
	if (!v->pieces)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->memory.n_regions; i++) {
		const struct manifest_region *r = &m->memory.regions[i];
		struct vault_piece *last = v->n_pieces ? &v->pieces[v->n_pieces - 1] : NULL;

		if (r->kind != MANIFEST_REGION_DEVICE)
			continue;
		if (last && goes_on(last, r)) {
			last->len_bytes += r->len_bytes;
			continue;
		}
		last = &v->pieces[v->n_pieces++];
		*last = (struct vault_piece){ .process = process_of(m, r),
					      .id = r->id,
					      .va = r->va,
					      .len_bytes = r->len_bytes,
					      .fd = -1 };
		memcpy(last->gpu, r->gpu, sizeof(last->gpu));
	}
	return 0;
}

/* Which piece region @r is of, and where that is in the host copy. */
static uint64_t place_of(const struct vault *v, const struct device_piece *pieces,
			 const struct manifest_region *r)
{
	for (size_t i = 0; i < v->n_pieces; i++)
		if (v->pieces[i].process.pid == r->pid && v->pieces[i].id == r->id)
			return host_copy_offset(pieces, i) + (r->va - v->pieces[i].va);
	return UINT64_MAX;
}

/* Where each region of the image is in the host copy of the vault's pieces. */
static int find_places(uint64_t *places, const struct vault *v, const struct manifest *m,
		       struct brumate_error *err)
{
	auto_free struct device_piece *pieces = vault_device_pieces(v);

	if (!pieces)
		return brumate_fail(err, ENOMEM, "%m");
	const uint64_t total_bytes = host_copy_offset(pieces, v->n_pieces);
	for (size_t i = 0; i < m->memory.n_regions; i++) {
		const struct manifest_region *r = &m->memory.regions[i];

		places[i] = UINT64_MAX;
		if (r->kind != MANIFEST_REGION_DEVICE)
			continue;
		places[i] = place_of(v, pieces, r);
		if (places[i] > total_bytes || r->len_bytes > total_bytes - places[i])
			return brumate_fail(err, EBADMSG, "region %zu lies outside its piece", i);
	}
	return 0;
}

int device_image_open(struct device_image_reader *ret, const struct store_image *image,
		      struct vault *v, struct brumate_error *err)
{
	const struct manifest *m = &image->manifest;
	auto_free uint64_t *places = calloc(m->memory.n_regions + 1, sizeof(*places));

	if (!places)
		return brumate_fail(err, ENOMEM, "%m");
	int r = find_pieces(v, m, err);
	if (r == 0)
		r = find_places(places, v, m, err);
	if (r == 0)
		*ret = (struct device_image_reader){ .image = image, .places = take_ptr(&places) };
	return r;
}

void device_image_reader_fini(struct device_image_reader *r)
{
	chunks_reader_free(r->chunks);
	free(r->parts);
	free(r->places);
	*r = (struct device_image_reader){ 0 };
}

/* ---- in: out of the store to the GPU, chunk by chunk ----
 *
 * Digests are compared by the GPU once the bytes are there, which costs nothing, where all of them are known; here otherwise. */

/* The digests of region @i, which is at @at of the host copy. 0: they are not known. */
static int know_digests(const struct device_image_reader *d, struct digest_table *digests, size_t i)
{
	uint64_t at = d->places[i], len = d->image->manifest.memory.regions[i].len_bytes;

	return digests ? chunks_digests(d->chunks, i,
					digest_table_digests(digests) + at / CHUNK_BYTES_MAX,
					(size_t)(len / CHUNK_BYTES_MAX))
		       : 0;
}

/* Where each chunk of region @i is from. */
static int plan_region(struct device_image_reader *d, struct feed *feed, size_t i)
{
	uint64_t at = d->places[i], len = d->image->manifest.memory.regions[i].len_bytes;
	size_t first = (size_t)(at / CHUNK_BYTES_MAX), n = (size_t)(len / CHUNK_BYTES_MAX);

	if (at % CHUNK_BYTES_MAX || len % CHUNK_BYTES_MAX || first + n > feed_n_chunks(feed))
		return -EBADMSG;
	for (size_t k = 0; k < n; k++) {
		d->parts[first + k] = (struct chunks_part){ (uint32_t)i, (uint32_t)k };
		feed_chunk_is(feed, first + k,
			      chunks_part_is_stored(d->chunks, i, k) ? FEED_READ : FEED_ZERO);
	}
	return 0;
}

/* What is zero by its digest the GPU makes, stored or not. */
static int spare_zeros(struct feed *feed, struct digest_table *digests)
{
	const struct digest *all = digest_table_digests(digests);
	struct digest zero;
	int r = chunk_digest_zeros(&zero);

	for (size_t k = 0; r == 0 && k < feed_n_chunks(feed); k++)
		if (!memcmp(&all[k], &zero, sizeof(zero)))
			feed_chunk_is(feed, k, FEED_SPARED);
	return r;
}

static int plan_regions(struct device_image_reader *d, struct feed *feed,
			struct digest_table *digests, bool *ret_known)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < d->image->manifest.memory.n_regions; i++) {
		if (d->places[i] == UINT64_MAX)
			continue;
		r = plan_region(d, feed, i);
		int known = r == 0 ? know_digests(d, digests, i) : 0;
		*ret_known = *ret_known && known > 0;
		r = known < 0 ? known : r;
	}
	return r == 0 && *ret_known ? spare_zeros(feed, digests) : r;
}

static int plan_image(void *reader, struct feed *feed, struct digest_table *digests, bool verify,
		      struct brumate_error *err)
{
	struct device_image_reader *d = reader;
	bool known = digests;
	int r = d->chunks ? 0 : store_chunks_open(&d->chunks, d->image, err);

	if (r < 0)
		return r;
	chunks_reader_map(d->chunks);
	free(d->parts);
	d->parts = calloc(feed_n_chunks(feed) + 1, sizeof(*d->parts));
	r = d->parts ? plan_regions(d, feed, digests, &known) : -ENOMEM;
	if (r < 0)
		return brumate_fail(err, -r, "device memory: %m");
	if (digests)
		digest_table_set_whole(digests, known);
	d->unverified = known && !verify;
	return d->unverified;
}

static int admit_item(void *arg, size_t item, bool block)
{
	return feed_admit(arg, item, block);
}

static void *item_room(void *arg, size_t item)
{
	return feed_room(arg, item);
}

static int item_filled(void *arg, size_t item)
{
	return feed_filled(arg, item);
}

static void stop_items(void *arg)
{
	feed_stop(arg);
}

static int feed_image(void *reader, struct feed *feed, bool (*is_cancelled)(void *arg), void *arg,
		      struct brumate_error *err)
{
	const struct device_image_reader *d = reader;
	const size_t n = feed_n(feed);
	auto_free struct chunks_part *parts = calloc(n + 1, sizeof(*parts));
	const struct chunks_stream s = {
		.parts = parts,
		.n = n,
		.unverified = d->unverified,
		.admit = admit_item,
		.room = item_room,
		.filled = item_filled,
		.stop = stop_items,
		.arg = feed,
	};

	if (!parts)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++)
		parts[i] = d->parts[feed_chunk(feed, i)];
	return chunks_load_stream(d->chunks, &s, is_cancelled, arg, err);
}

struct datapath_source device_image_source(struct device_image_reader *r)
{
	return (struct datapath_source){ .plan = plan_image, .feed = feed_image, .arg = r };
}

/* ---- the restored processes ---- */

/* The driver saved the memory of a process whose agent did not answer then: the agent has all of it mapped. */
static bool saved_by_driver(const struct datapath_agent *a, size_t n)
{
	return n == 0 && a->agent.gate == AGENT_GATE_OPEN;
}

static int compare_pieces(const struct vault *v, const struct datapath_agent *a, size_t first,
			  size_t n, struct brumate_error *err)
{
	for (size_t i = 0; n == a->n_pieces && i < n; i++) {
		const struct vault_piece *p = NULL;

		for (size_t k = first; k < first + n && !p; k++)
			if (v->pieces[k].id == a->pieces[i].id)
				p = &v->pieces[k];
		if (!p || p->va != a->pieces[i].va || p->len_bytes != a->pieces[i].len_bytes)
			n = a->n_pieces + 1;
	}
	if (n == a->n_pieces)
		return 0;
	return brumate_fail(
		err, EBADMSG,
		"process %d: its agent asks for %zu pieces of device memory, which are not "
		"those of the checkpoint",
		a->agent.id.pid, a->n_pieces);
}

static bool is_alive(const struct proc_tree *tree, pid_t inner_pid)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].inner_pid == inner_pid)
			return tree->items[i].state != 'Z' && !tree->items[i].ends;
	return false;
}

/* What nobody has taken is of processes that have ended since they were restored. It counts as if they had ended before, since
 * others may have it mapped. */
static int assign_to_ended(struct vault *v, struct proc_id root, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	bool is_read = false;

	for (size_t k = 0; k < v->n_pieces; k++) {
		struct proc_id *process = &v->pieces[k].process;

		if (process->start_ticks)
			continue;
		int r = is_read ? 0 : proc_tree_read(&tree, root, NULL);
		if (r < 0 && r != -ESRCH)
			return brumate_fail(err, -r, "the restored processes: %m");
		is_read = true;
		if (is_alive(&tree, process->pid))
			return brumate_fail(err, EIO,
					    "process %d of the checkpoint has device memory, but "
					    "no agent to take it",
					    process->pid);
		process->start_ticks = VAULT_ENDED_TICKS;
	}
	return 0;
}

int device_image_assign(struct datapath *d, struct brumate_error *err)
{
	struct vault *v = d->vault;
	int r = 0;

	for (size_t i = 0; v && r == 0 && i < d->n_agents; i++) {
		const struct datapath_agent *a = &d->agents[i];
		struct proc_info info;
		size_t first;

		r = proc_read(&info, a->agent.id.pid, err);
		for (size_t k = 0; r == 0 && k < v->n_pieces; k++)
			if (!v->pieces[k].process.start_ticks &&
			    v->pieces[k].process.pid == info.inner_pid)
				v->pieces[k].process = a->agent.id;
		size_t n = vault_find(v, a->agent.id, &first);
		if (r == 0 && !saved_by_driver(a, n))
			r = compare_pieces(v, a, first, n, err);
	}
	return r < 0 || !v ? r : assign_to_ended(v, d->target->root, err);
}
