// SPDX-License-Identifier: MIT
/* Device memory between host copies and the store. See regions.h. */
#include "engine/regions.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "datapath/vault.h"
#include "engine/spilled.h"
#include "chunks/chunks.h"
#include "wire/transfer.h"

/* ---- out ---- */

static int zeros_read(void *arg, uint64_t offset, void *buf, size_t len_bytes)
{
	(void)arg;
	(void)offset;
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

static int save_memory(struct op *op, const struct manifest_region *region, const struct extent *x,
		       uint64_t offset, struct brumate_error *err)
{
	int fd = x->copy->segments[offset / x->copy->segment_bytes];
	uint64_t inside = offset % x->copy->segment_bytes;

	if (!x->digests || offset % CHUNK_BYTES_MAX || region->len_bytes % CHUNK_BYTES_MAX)
		return chunks_add(op->memory, region, fd, inside, err);
	return chunks_add_known(op->memory, region, fd, inside,
				x->digests + offset / CHUNK_BYTES_MAX, err);
}

/* Bytes at @offset of the host copy, which lie in one segment. */
static int save_region(struct op *op, const struct manifest_region *region, const struct extent *x,
		       uint64_t offset, struct brumate_error *err)
{
	size_t segment = (size_t)(offset / x->copy->segment_bytes);

	if (!spilled_has(op->spilled, segment) && is_blank(x->copy, segment))
		return chunks_add_from(op->memory, region, zeros_read, NULL, err);
	if (!spilled_has(op->spilled, segment))
		return save_memory(op, region, x, offset, err);
	void *source = spilled_source(op->spilled, offset);
	if (!source)
		return brumate_fail(err, ENOMEM, "%m");
	return chunks_add_from(op->memory, region, spilled_source_read, source, err);
}

/* What of a piece, which is at @offset of the host copy, lies in @x. */
static int save_piece(struct op *op, const struct vault_piece *p, uint64_t offset,
		      const struct extent *x, struct brumate_error *err)
{
	const uint64_t segment_bytes = x->copy->segment_bytes;
	uint64_t at = offset > x->start ? offset : x->start;
	uint64_t end = offset + p->len_bytes < x->end ? offset + p->len_bytes : x->end;
	struct proc_info info;
	int r = at < end ? proc_read(&info, p->process.pid, err) : 0;

	while (r == 0 && at < end) {
		uint64_t room = segment_bytes - at % segment_bytes;
		struct manifest_region region = { .kind = MANIFEST_REGION_DEVICE,
						  .pid = info.inner_pid,
						  .id = p->id,
						  .va = p->va + (at - offset),
						  .len_bytes = room < end - at ? room : end - at };

		snprintf(region.gpu, sizeof(region.gpu), "%s", p->gpu);
		r = save_region(op, &region, x, at, err);
		at += region.len_bytes;
	}
	return r;
}

static int save_extent(struct op *op, const struct extent *x, struct brumate_error *err)
{
	const struct vault *h = op->vault;
	uint64_t offset = 0;
	int r = 0;

	for (size_t i = 0; r == 0 && i < h->n_pieces && offset < x->end; i++) {
		r = save_piece(op, &h->pieces[i], offset, x, err);
		offset = transfer_next(offset, h->pieces[i].len_bytes);
	}
	return r;
}

int regions_save_part(struct op *op, const struct host_copy *copy, uint64_t start, uint64_t end,
		      const struct digest *digests, struct brumate_error *err)
{
	return save_extent(op, &(struct extent){ copy, start, end, digests }, err);
}

int regions_save(struct op *op, const struct host_copy *copy, uint64_t start,
		 struct brumate_error *err)
{
	bool whole = copy->digests && digest_table_is_whole(copy->digests);
	struct extent x = { copy, start, copy->total_bytes,
			    whole ? digest_table_digests(copy->digests) : NULL };
	struct spilled *spilled;
	int r = spilled_open(&spilled, copy, err);

	if (r == 0 && spilled) {
		spilled_chain(spilled, op->spilled); /* the store may still read from that */
		op->spilled = spilled;
	}
	return r < 0 ? r : save_extent(op, &x, err);
}

/* ---- in ---- */

static bool goes_on(const struct vault_piece *p, const struct manifest_region *r)
{
	return p->process.pid == r->pid && p->id == r->id && p->va + p->len_bytes == r->va;
}

static int find_pieces(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->image.manifest;
	struct vault *h = op->vault;

	vault_clear(h, op->job);
	h->pieces = calloc(m->memory.n_regions + 1, sizeof(*h->pieces));
	if (!h->pieces)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m->memory.n_regions; i++) {
		const struct manifest_region *r = &m->memory.regions[i];
		struct vault_piece *last = h->n_pieces ? &h->pieces[h->n_pieces - 1] : NULL;

		if (r->kind != MANIFEST_REGION_DEVICE)
			continue;
		if (last && goes_on(last, r)) {
			last->len_bytes += r->len_bytes;
			continue;
		}
		last = &h->pieces[h->n_pieces++];
		*last = (struct vault_piece){ .process = { .pid = r->pid },
					      .id = r->id,
					      .va = r->va,
					      .len_bytes = r->len_bytes,
					      .fd = -1 };
		memcpy(last->gpu, r->gpu, sizeof(last->gpu));
	}
	return 0;
}

/* Which piece region @r is of, and where that is in the host copy. */
static uint64_t place_of(const struct vault *h, const struct device_piece *pieces,
			 const struct manifest_region *r)
{
	for (size_t i = 0; i < h->n_pieces; i++)
		if (h->pieces[i].process.pid == r->pid && h->pieces[i].id == r->id)
			return host_copy_offset(pieces, i) + (r->va - h->pieces[i].va);
	return UINT64_MAX;
}

/* Where each region of the image is in the host copy of what is held. */
static int find_places(const struct op *op, uint64_t *places, struct brumate_error *err)
{
	const struct manifest *m = &op->image.manifest;
	auto_free struct device_piece *pieces = vault_device_pieces(op->vault);

	if (!pieces)
		return brumate_fail(err, ENOMEM, "%m");
	const uint64_t total_bytes = host_copy_offset(pieces, op->vault->n_pieces);
	for (size_t i = 0; i < m->memory.n_regions; i++) {
		const struct manifest_region *r = &m->memory.regions[i];

		places[i] = UINT64_MAX;
		if (r->kind != MANIFEST_REGION_DEVICE)
			continue;
		places[i] = place_of(op->vault, pieces, r);
		if (places[i] > total_bytes || r->len_bytes > total_bytes - places[i])
			return brumate_fail(err, EBADMSG, "region %zu lies outside its piece", i);
	}
	return 0;
}

int regions_find(struct op *op, uint64_t **ret_places, struct brumate_error *err)
{
	if (!op->vault)
		return 0;
	auto_free uint64_t *places =
		calloc(op->image.manifest.memory.n_regions + 1, sizeof(*places));
	if (!places)
		return brumate_fail(err, ENOMEM, "%m");
	int r = find_pieces(op, err);
	if (r == 0)
		r = find_places(op, places, err);
	if (r == 0)
		*ret_places = take_ptr(&places);
	return r;
}

/* ---- the restored processes ---- */

static int compare(const struct vault *h, const struct op_agent *a, size_t first, size_t n,
		   struct brumate_error *err)
{
	for (size_t i = 0; n == a->n_pieces && i < n; i++) {
		const struct vault_piece *p = NULL;

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
	struct vault *h = op->vault;
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
		size_t n = vault_find(h, a->agent.id, &first);
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
