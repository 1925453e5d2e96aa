// SPDX-License-Identifier: MIT
/*
 * Copies of memory that a program writes meanwhile. What is copied goes through a stage, memory of our
 * own on the same GPU: digests are of the stage, and the stage is what goes to the host, so they are of
 * the same bytes even where the memory changed in the middle, or changed and changed back.
 */
#include "broker/data-lane.h"
#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>

#define STAGE_BYTES (128ull << 20)

enum { STAGES = DIGESTERS };

struct stage {
	uint64_t at; /* where it is mapped */
	bool mapped;
	uint64_t offset, bytes; /* of the host copy, that it holds */
	uint64_t ticket;	/* of the last copy out of it */
	bool copies;
};

struct live {
	struct lane *lane;
	struct dev_lane *fill; /* into stages; those out of them have the lane's own */
	uint64_t at, room;     /* of the stages' addresses */
	struct stage stages[STAGES];
	struct place place;
};

static int open_stage(struct live *v, size_t i, struct brumate_error *err)
{
	const struct dev_memory_ops *ops = v->lane->mover->ops;
	struct stage *s = &v->stages[i];
	auto_close int fd = -1;

	s->at = v->at + i * STAGE_BYTES;
	int r = ops->create(v->lane->memory, STAGE_BYTES, s->at, &fd, err);
	if (r < 0)
		return r;
	s->mapped = true;
	return ops->allow(v->lane->memory, s->at, STAGE_BYTES, err);
}

static void close_stages(struct live *v)
{
	const struct dev_memory_ops *ops = v->lane->mover->ops;
	struct brumate_error err;

	if (v->fill)
		ops->lane_close(v->fill);
	for (size_t i = 0; i < STAGES; i++)
		if (v->stages[i].mapped &&
		    ops->unmap(v->lane->memory, v->stages[i].at, STAGE_BYTES, &err) < 0)
			log_warn("%s", err.text);
	if (v->room)
		ops->unreserve(v->lane->memory, v->at, v->room);
}

static int open_stages(struct live *v, struct brumate_error *err)
{
	struct lane *l = v->lane;
	const struct dev_memory_ops *ops = l->mover->ops;

	if (l->mover->host->spilled)
		return brumate_fail(err, EOPNOTSUPP, "host memory is too short for it");
	if (l->n_digesters < STAGES)
		return brumate_fail(err, ENOSPC,
				    "no digests on the GPU: it has no room, or they are off");
	int r = ops->reserve(l->memory, STAGES * STAGE_BYTES, &v->at, err);
	if (r < 0)
		return r;
	v->room = STAGES * STAGE_BYTES;
	for (size_t i = 0; i < STAGES && r == 0; i++)
		r = open_stage(v, i, err);
	return r < 0 ? r : ops->lane_open(l->memory, false, &v->fill, err);
}

/* The next run of memory into the stage, and its digests begun. */
static int fill_stage(struct live *v, size_t i, bool block, struct brumate_error *err)
{
	struct lane *l = v->lane;
	const struct dev_memory_ops *ops = l->mover->ops;
	struct stage *s = &v->stages[i];
	uint64_t ticket;
	int r = lane_find_run(l, &v->place, &l->usable_bytes, block, STAGE_BYTES, &s->bytes);

	if (r != STEP_BEGUN)
		return r;
	if ((r = fault_point("data.live")) < 0)
		return brumate_fail(err, -r, "live copy: %m");
	s->copies = false;
	s->offset = place_offset(l, &v->place);
	place_advance(l, &v->place, s->bytes);
	r = ops->copy_within(v->fill, s->at, l->at + s->offset, s->bytes, &ticket, err);
	if (r == 0)
		r = ops->wait(v->fill, ticket, err); /* the digest has a stream of its own */
	if (r == 0)
		r = ops->digest(l->digesters[i], s->at, s->bytes, err);
	return r < 0 ? r : STEP_BEGUN;
}

/* One run of a fate, within a segment. */
static int store_run(struct live *v, struct stage *s, uint64_t from, uint64_t bytes,
		     enum chunk_fate fate, struct brumate_error *err)
{
	struct lane *l = v->lane;
	struct host_copy *h = l->mover->host;
	uint64_t offset = s->offset + from;
	size_t i = (size_t)(offset / h->segment_bytes);
	struct segment *segment;

	if (fate == CHUNK_KEEP || (fate == CHUNK_ZERO && host_copy_skips_zeros(h, i, true)))
		return 0;
	int r = host_copy_get(h, i, true, &segment, err);
	if (r < 0)
		return r;
	if (fate == CHUNK_ZERO && !h->clean[i])
		segment_zero(segment, offset % h->segment_bytes, bytes);
	if (fate != CHUNK_COPY)
		return 0;
	s->copies = true;
	return l->mover->ops->copy_out(l->copies, segment->at + offset % h->segment_bytes,
				       s->at + from, bytes, &s->ticket, err);
}

/* When its digests are there: begins the copies of what the host copy does not have. */
static int empty_stage(struct live *v, size_t i, struct brumate_error *err)
{
	struct lane *l = v->lane;
	struct mover *m = l->mover;
	struct stage *s = &v->stages[i];
	struct digest digests[STAGE_BYTES / CHUNK_BYTES_MAX];
	bool zero[STAGE_BYTES / CHUNK_BYTES_MAX];
	uint64_t zeros = 0, same = 0;
	int r = m->ops->digest_wait(l->digesters[i], digests, zero, err);

	if (r == 0)
		r = chunks_learn(m, s->offset, digests, zero, s->bytes / CHUNK_BYTES_MAX, err);
	for (uint64_t from = 0, bytes; r == 0 && from < s->bytes; from += bytes) {
		uint64_t left =
			m->host->segment_bytes - (s->offset + from) % m->host->segment_bytes;

		bytes = s->bytes - from < left ? s->bytes - from : left;
		enum chunk_fate fate = chunks_fate(m, s->offset + from, &bytes);
		zeros += fate == CHUNK_ZERO ? bytes : 0;
		same += fate == CHUNK_KEEP ? bytes : 0;
		r = store_run(v, s, from, bytes, fate, err);
	}
	pthread_mutex_lock(&m->lock);
	m->zero_bytes += zeros;
	m->same_bytes += same;
	pthread_mutex_unlock(&m->lock);
	return r;
}

static int finish_stage(struct live *v, size_t i, struct brumate_error *err)
{
	struct mover *m = v->lane->mover;
	struct stage *s = &v->stages[i];
	int r = s->copies ? m->ops->wait(v->lane->copies, s->ticket, err) : 0;

	pthread_mutex_lock(&m->lock);
	m->done_bytes += s->bytes;
	pthread_mutex_unlock(&m->lock);
	return r;
}

/* One stage is filled and read by the digests while the other goes out. */
static int copy_through(struct live *v, struct brumate_error *err)
{
	size_t filled = 0, emptied = 0, finished = 0;
	bool more = true;
	int r = 0;

	while (r >= 0 && (more || finished < filled)) {
		if (more && filled - finished < STAGES) {
			r = fill_stage(v, filled % STAGES, filled == finished, err);
			filled += r == STEP_BEGUN;
			more = r != STEP_NONE;
			if (r != STEP_NOT_YET)
				continue;
		}
		if (emptied < filled)
			r = empty_stage(v, emptied++ % STAGES, err);
		else
			r = finish_stage(v, finished++ % STAGES, err);
	}
	return r < 0 ? r : 0;
}

int lane_copy_live(struct lane *l, struct brumate_error *err)
{
	struct live v = { .lane = l };
	int r = open_stages(&v, err);

	if (r == 0)
		r = copy_through(&v, err);
	/* Whatever still reads a stage is waited for before the stage goes. */
	lane_close_digesters(l);
	if (l->copies) {
		l->mover->ops->lane_close(l->copies);
		l->copies = NULL;
	}
	close_stages(&v);
	return r < 0 ? brumate_wrap(err, r, "live copy") : 0;
}
