// SPDX-License-Identifier: MIT
/* Device memory that comes in through a ring. See transfer.h. */
#include "broker/transfer.h"
#include "broker/digests.h"
#include "base/fault.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>

#define ZERO_BYTES (1ull << 30) /* filled by the GPU at a time */

enum {
	SLOTS_MIN = 4,
	WINDOW = 16,
	WINDOW_TURNS = 2, /* as much as a copy of a transfer that takes turns */
};

/* The content of a slot. */
struct filled {
	uint64_t offset, bytes;
	unsigned slot;
};

/* The slots that were filled for a lane, in order: each slot at most once. */
struct stream_lane {
	struct filled filled[TRANSFER_SLOTS_MAX];
	size_t begun, end;
	uint64_t done_bytes; /* of the first slot; for the copying thread alone */
};

struct stream {
	struct segment *ring;
	size_t n_slots;
	pthread_mutex_t pinning;

	/* under the transfer's lock */
	uint32_t busy, freed;
	struct stream_lane *lanes;
};

/* Takes as many slots as there is room for, up to *@n_slots. The fewest may be plain memory: a host copy of everything
 * would take more. */
static struct segment *take_ring(struct pool *pool, size_t *n_slots)
{
	for (size_t n = *n_slots;; n = n / 2 > SLOTS_MIN ? n / 2 : SLOTS_MIN) {
		struct segment *ring =
			pool_take_ring(pool, n * TRANSFER_SLOT_BYTES, n == SLOTS_MIN);

		*n_slots = n;
		if (ring || n == SLOTS_MIN)
			return ring;
	}
}

int stream_new(struct stream **ret, struct transfer *t, struct brumate_error *err)
{
	struct stream *s = calloc(1, sizeof(*s));
	size_t n = (size_t)((t->total_bytes - 1) / TRANSFER_SLOT_BYTES + 1);

	if (!s)
		return brumate_fail(err, ENOMEM, "ring: %m");
	pthread_mutex_init(&s->pinning, NULL);
	s->lanes = calloc(t->n_lanes, sizeof(*s->lanes));
	s->n_slots = n < SLOTS_MIN ? SLOTS_MIN : n < TRANSFER_SLOTS_MAX ? n : TRANSFER_SLOTS_MAX;
	int r = s->lanes ? fault_point("data.ring") : -ENOMEM;
	if (r == 0 && (s->ring = take_ring(gpus_pool(t->gpus), &s->n_slots)) &&
	    segment_populate(s->ring, NULL) >= 0) {
		*ret = s;
		return 0;
	}
	stream_free(s);
	return brumate_fail(err, ENOMEM, "the broker has no memory for a ring of %llu MiB",
			    SLOTS_MIN * TRANSFER_SLOT_BYTES >> 20);
}

void stream_free(struct stream *s)
{
	if (!s)
		return;
	pool_put(s->ring);
	pthread_mutex_destroy(&s->pinning);
	free(s->lanes);
	free(s);
}

int stream_lease(struct stream *s, uint64_t *ret_bytes, struct brumate_error *err)
{
	*ret_bytes = s->n_slots * TRANSFER_SLOT_BYTES;
	return segment_lease(s->ring, true, err);
}

/* ---- what the client says ---- */

/* The piece that holds byte @offset of the host copy. */
static size_t find_piece(const struct transfer *t, uint64_t offset)
{
	size_t low = 0, high = t->n_pieces;

	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (t->pieces[middle].offset <= offset)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* The lane of the bytes from @offset to before @end; NULL: they are not all of one lane. */
static struct stream_lane *find_lane(const struct transfer *t, uint64_t offset, uint64_t end)
{
	if (end > t->total_bytes)
		return NULL;
	size_t i = find_piece(t, offset), lane = t->pieces[i].lane;
	while (++i < t->n_pieces && t->pieces[i].offset < end)
		if (t->pieces[i].lane != lane)
			return NULL;
	return &t->stream->lanes[lane];
}

int stream_fill(struct transfer *t, unsigned slot, uint64_t offset, uint64_t bytes,
		struct brumate_error *err)
{
	struct stream *s = t->stream;
	struct stream_lane *lane = find_lane(t, offset, offset + bytes);
	int r = -EBADMSG;

	pthread_mutex_lock(&t->lock);
	if (lane && slot < s->n_slots && !(s->busy >> slot & 1)) {
		s->busy |= 1u << slot;
		lane->filled[lane->end++ % TRANSFER_SLOTS_MAX] =
			(struct filled){ offset, bytes, slot };
		r = 0;
	}
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return r < 0 ? brumate_fail(err, -r, "ring: slot %u cannot hold that", slot) : 0;
}

uint32_t stream_take_freed(struct transfer *t)
{
	pthread_mutex_lock(&t->lock);
	uint32_t freed = t->stream->freed;
	t->stream->freed = 0;
	pthread_mutex_unlock(&t->lock);
	return freed;
}

/* ---- the copying thread ---- */

struct copy {
	uint64_t at, bytes, ticket;
	bool zero;
	const char *from;
	uint32_t frees; /* slots, as a mask */
};

struct copier {
	struct lane *lane;
	struct stream_lane *in;
	struct position position;
};

/* If the driver does not pin it, copies still work, more slowly. */
static void pin_ring(struct lane *l)
{
	struct transfer *t = l->transfer;
	struct stream *s = t->stream;

	pthread_mutex_lock(&s->pinning);
	if (s->ring->pinning != SEGMENT_PINNED && segment_is_worth_pinning(s->ring))
		segment_pin(s->ring, t->ops, l->memory);
	pthread_mutex_unlock(&s->pinning);
}

/* Finds the slot whose bytes come next; waits for it with @block. Returns LANE_…, or <0. */
static int find_filled(struct copier *c, uint64_t offset, bool block, struct copy *ret,
		       struct brumate_error *err)
{
	struct transfer *t = c->lane->transfer;
	struct stream_lane *in = c->in;
	struct filled f = { 0 };
	int r = LANE_FOUND;

	pthread_mutex_lock(&t->lock);
	while (block && t->state != TRANSFER_STOPPED && in->begun == in->end)
		pthread_cond_wait(&t->changed, &t->lock);
	if (t->state == TRANSFER_STOPPED)
		r = -ECANCELED;
	else if (in->begun == in->end)
		r = LANE_NOT_YET;
	else
		f = in->filled[in->begun % TRANSFER_SLOTS_MAX];
	pthread_mutex_unlock(&t->lock);
	if (r != LANE_FOUND)
		return r;
	if (f.offset + in->done_bytes != offset)
		return brumate_fail(err, EBADMSG, "ring: slot %u is not what comes next", f.slot);
	ret->from = t->stream->ring->at + f.slot * TRANSFER_SLOT_BYTES + in->done_bytes;
	if (ret->bytes >= f.bytes - in->done_bytes) {
		ret->bytes = f.bytes - in->done_bytes;
		ret->frees = 1u << f.slot;
	}
	return LANE_FOUND;
}

/* Without the lock: only this thread removes slots. */
static void take_filled(struct copier *c, const struct copy *s)
{
	struct transfer *t = c->lane->transfer;

	c->in->done_bytes += s->bytes;
	if (!s->frees)
		return;
	c->in->done_bytes = 0;
	pthread_mutex_lock(&t->lock);
	c->in->begun++;
	pthread_mutex_unlock(&t->lock);
}

/* Returns LANE_…, or <0. */
static int find_copy(struct copier *c, struct copy *ret, bool block, struct brumate_error *err)
{
	struct lane *l = c->lane;
	const struct transfer *t = l->transfer;

	*ret = (struct copy){ 0 };
	int r = lane_find_run(l, &c->position, &l->usable_bytes, block, ZERO_BYTES, &ret->bytes);
	if (r != LANE_FOUND)
		return r;
	uint64_t offset = lane_offset(l, &c->position);
	ret->at = l->at + offset;
	if (digests_are_known(t))
		ret->zero = digests_fate(t, offset, &ret->bytes) == CHUNK_ZERO;
	if (!ret->zero)
		r = find_filled(c, offset, block, ret, err);
	if (r != LANE_FOUND)
		return r;
	if (!ret->zero)
		take_filled(c, ret);
	lane_advance(l, &c->position, ret->bytes);
	return LANE_FOUND;
}

static int begin_copy(struct copier *c, struct copy *s, bool block, struct brumate_error *err)
{
	struct lane *l = c->lane;
	const struct dev_memory_ops *ops = l->transfer->ops;
	int r = find_copy(c, s, block, err);

	if (r != LANE_FOUND)
		return r;
	if ((r = fault_point("data.copy")) < 0)
		return brumate_fail(err, -r, "copy: %m");
	r = s->zero ? ops->zero(l->queue, s->at, s->bytes, &s->ticket, err)
		    : ops->copy_in(l->queue, s->at, s->from, s->bytes, &s->ticket, err);
	return r < 0 ? r : LANE_FOUND;
}

static int end_copy(struct lane *l, const struct copy *s, struct brumate_error *err)
{
	struct transfer *t = l->transfer;
	int r = t->ops->wait(l->queue, s->ticket, err);

	if (r < 0)
		return r;
	if (!s->zero)
		gpus_count(t->gpus, l->uuid, &(struct broker_moved){ .in_bytes = s->bytes });
	pthread_mutex_lock(&t->lock);
	t->done_bytes += s->bytes;
	t->zero_bytes += s->zero ? s->bytes : 0;
	l->copied_bytes += s->bytes;
	t->stream->busy &= ~s->frees;
	t->stream->freed |= s->frees;
	lane_note_copied(t);
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	if (s->frees)
		eventfd_write(t->wake_fd, 1);
	r = fault_point("data.filled");
	return r < 0 ? brumate_fail(err, -r, "copy: %m") : 0;
}

int stream_copy(struct lane *l, bool turns, struct brumate_error *err)
{
	struct copier c = {
		.lane = l,
		.in = &l->transfer->stream->lanes[l - l->transfer->lanes],
	};
	struct copy copies[WINDOW];
	const size_t window = turns ? WINDOW_TURNS : WINDOW;
	size_t begun = 0, ended = 0;
	bool more = true;
	int r = 0;

	pin_ring(l);
	while (r >= 0 && (more || ended < begun)) {
		if (more && begun - ended < window) {
			r = begin_copy(&c, &copies[begun % window], begun == ended, err);
			begun += r == LANE_FOUND;
			more = r != LANE_DONE;
			if (r != LANE_NOT_YET)
				continue;
		}
		r = end_copy(l, &copies[ended++ % window], err);
	}
	return r < 0 ? r : 0;
}
