// SPDX-License-Identifier: MIT
/*
 * The thread of a lane that maps its pieces, at the distances that they have in the host copy, and unmaps
 * what was copied out.
 */
#include "broker/data-lane.h"

#include "base/fault.h"
#include "base/log.h"
#include "base/machine.h"

static int open_lane(struct lane *l, struct brumate_error *err)
{
	struct mover *m = l->mover;
	/* To be woken takes as long as a tenth of a copy: with one at a time the GPU is idle meanwhile. */
	bool spin = lane_takes_turns(m) && machine_cores() >= SPIN_CORES_MIN;
	int r = gpus_get(&l->memory, l->uuid, err);

	if (r == 0)
		r = m->ops->reserve(l->memory, m->total_bytes, &l->at, err);
	l->reserved = r == 0;
	if (r == 0)
		r = m->ops->lane_open(l->memory, spin, &l->copies, err);
	if (r < 0)
		return r;
	if (m->flags & TRANSFER_WITH_DIGESTS)
		lane_open_digesters(l);
	pthread_mutex_lock(&m->lock);
	l->opened = true;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static int import_piece(struct lane *l, struct piece *p, struct brumate_error *err)
{
	const struct dev_memory_ops *ops = l->mover->ops;
	int r = fault_point("data.import");

	if (r < 0)
		return brumate_fail(err, -r, "import: %m");
	r = ops->import(l->memory, p->fd, p->len_bytes, l->at + p->offset, err);
	cleanup_close(&p->fd);
	return r;
}

static int create_piece(struct lane *l, struct piece *p, struct brumate_error *err)
{
	const struct dev_memory_ops *ops = l->mover->ops;
	int r = fault_point("data.export");

	if (r < 0)
		return brumate_fail(err, -r, "export: %m");
	return ops->create(l->memory, p->len_bytes, l->at + p->offset, &p->fd, err);
}

static int publish(struct lane *l, size_t first, size_t end, struct brumate_error *err)
{
	struct mover *m = l->mover;
	uint64_t start = piece_of(l, first)->offset;
	const struct piece *last = piece_of(l, end - 1);
	int r = m->ops->allow(l->memory, l->at + start, last->offset + last->len_bytes - start,
			      err);

	if (r < 0)
		return r;
	pthread_mutex_lock(&m->lock);
	for (size_t i = first; i < end; i++)
		l->usable_bytes += piece_of(l, i)->len_bytes;
	m->n_made += end - first;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static int map_pieces(struct lane *l, struct brumate_error *err)
{
	struct mover *m = l->mover;
	size_t first = 0;
	uint64_t bytes = 0;
	int r = 0;

	for (size_t i = 0; i < l->n_pieces && r == 0; i++) {
		struct piece *p = piece_of(l, i);

		r = lane_wait_turn(l, m->to_host ? l->pieces[i] + 1 : 0);
		if (r < 0)
			return brumate_fail(err, -r, "cancelled");
		r = m->to_host ? import_piece(l, p, err) : create_piece(l, p, err);
		if (r < 0)
			return brumate_wrap(err, r, "piece %zu of %zu", l->pieces[i] + 1,
					    m->n_pieces);
		l->n_mapped = i + 1;
		bytes += p->len_bytes;
		if (bytes < BATCH_BYTES && is_followed(l, i))
			continue;
		r = publish(l, first, i + 1, err);
		first = i + 1;
		bytes = 0;
	}
	return r;
}

/* Those before @end, as far as they are not yet. */
static void unmap_pieces(struct lane *l, size_t end)
{
	const struct dev_memory_ops *ops = l->mover->ops;
	struct brumate_error err;

	for (size_t first = l->n_unmapped; l->n_unmapped < end;) {
		uint64_t start = piece_of(l, first)->offset;
		const struct piece *last = piece_of(l, l->n_unmapped++);

		if (l->n_unmapped < end && is_followed(l, l->n_unmapped - 1))
			continue;
		if (ops->unmap(l->memory, l->at + start, last->offset + last->len_bytes - start,
			       &err) < 0)
			log_warn("%s", err.text);
		first = l->n_unmapped;
	}
}

/* What has gone out is nobody's here any more: the end of the copy need not wait for that. */
static void unmap_behind(struct lane *l)
{
	struct mover *m = l->mover;
	const uint64_t least = piece_of(l, l->n_pieces - 1)->lane_end / BEHIND_GOES;
	uint64_t bytes = 0;
	bool stopped = false;

	for (size_t i = 0; i < l->n_pieces && !stopped; i++) {
		const struct piece *p = piece_of(l, i);

		bytes += p->len_bytes;
		if (bytes < least && i + 1 < l->n_pieces)
			continue;
		pthread_mutex_lock(&m->lock);
		while (!m->stopped && l->copied_bytes < p->lane_end)
			pthread_cond_wait(&m->changed, &m->lock);
		stopped = m->stopped;
		pthread_mutex_unlock(&m->lock);
		if (!stopped)
			unmap_pieces(l, i + 1);
		bytes = 0;
	}
}

void lane_close(struct lane *l)
{
	const struct dev_memory_ops *ops = l->mover->ops;

	lane_close_digesters(l);
	if (l->copies)
		ops->lane_close(l->copies);
	pool_put(l->ring);
	unmap_pieces(l, l->n_mapped);
	if (l->reserved)
		ops->unreserve(l->memory, l->at, l->mover->total_bytes);
}

void *lane_run_map(void *arg)
{
	struct lane *l = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = open_lane(l, &err);

	if (r == 0)
		r = map_pieces(l, &err);
	if (r < 0)
		mover_fail(l->mover, &err);
	else if (l->mover->to_host && !(l->mover->flags & TRANSFER_LIVE))
		unmap_behind(l);
	lane_end_thread(l);
	return NULL;
}
