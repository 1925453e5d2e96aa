// SPDX-License-Identifier: MIT
/*
 * Transfers: the threads that move pieces of device memory, and how a transfer ends.
 *
 * A lane's mapping thread maps pieces ahead and unmaps what was copied. Its copying thread copies what is mapped, in
 * copies that lie in one segment. A copy whose segment is not pinned goes through a slot of a pinned ring, and from
 * there by a worker's memcpy(3); a window of copies keeps both busy. A third thread makes the GPU compute digests.
 *
 * Memory that a running program may write goes through a stage, memory of our own on the same GPU. The digests are
 * computed from the stage, and the stage is copied to the host, so both are of the same bytes even if the memory
 * changes during the copy, or changes and changes back.
 */
#include "broker/transfer.h"
#include "broker/digests.h"
#include "broker/driver.h"
#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/thread.h"
#include "gpu/vendor.h"
#include "wire/host-copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define COPY_BYTES     (32ull << 20)
#define TURN_OUT_BYTES (16ull << 20) /* a copy, if it takes turns with the driver */
#define TURN_IN_BYTES  (8ull << 20)
#define SLOT_BYTES     (8ull << 20)
#define ZERO_BYTES     (1ull << 30)  /* filled by the GPU at a time */
#define BATCH_BYTES    (64ull << 20) /* mapped before the GPU gets access to them */
#define STAGE_LEAST    (128ull << 20)
#define STAGE_TIGHT    (8ull << 20) /* where GPUs are nearly full */
#define STAGE_MOST     (1ull << 30)
#define MAKES_ALONE_NS (150 * NS_PER_MS) /* pieces are allocated before the first copy */

enum {
	WINDOW = 16,
	TURNS_ALONE = 2, /* copies that the GPU has at a time once the driver has no copies left */
	SPIN_CORES_MIN = 4,
	SLOTS_ALL = 32, /* of all lanes together, if each has SLOTS_MIN */
	SLOTS_MIN = 4,
	STAGES_IN_ALL = 8,     /* at least in a copy, unless they are the smallest */
	STAGES_FREE_PART = 16, /* part of the free device memory that larger stages may take */
	BEHIND_GOES = 32,      /* parts in which copied-out memory is unmapped */
	STAGES = LANE_DIGESTERS,
	WORKERS_MAX = 8, /* more do not copy faster: docs/design/measurements.md */
};

/*
 * The driver copies, too, for the same job: what it saves or restores, and whenever memory is allocated or mapped,
 * with the engine that copies in. So the GPU gets one copy at a time, except for a large stream, which waits for the
 * store anyway. With several GPUs, each would wait for the others' calls between two copies. For a running job the
 * driver copies nothing.
 */
static bool takes_turns(const struct transfer *t)
{
	const bool large = t->total_bytes >= driver_vendor(t->driver)->tuning.large_stream_bytes;

	return t->n_lanes == 1 && !(t->flags & TRANSFER_LIVE) &&
	       !(large && t->flags & TRANSFER_STREAM);
}

/* What the driver does at the same time. */
static enum dev_action driver_part(const struct transfer *t)
{
	return t->to_host ? DEV_DO_CHECKPOINT : DEV_RESTORE;
}

/* Whether the driver has finished its part, so that only our copies are left. */
static bool driver_is_through(const struct transfer *t)
{
	uint64_t end_ns;

	return driver_done(t->driver, driver_part(t)) > t->done_before &&
	       !driver_busy(t->driver, &end_ns);
}

void transfer_fail(struct transfer *t, const struct brumate_error *err)
{
	pthread_mutex_lock(&t->lock);
	if (t->state != TRANSFER_STOPPED)
		t->err = *err;
	t->state = TRANSFER_STOPPED;
	if (t->host)
		segments_stop(t->host);
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	eventfd_write(t->wake_fd, 1);
}

/* ---- the mapping thread ---- */

static int open_lane(struct lane *l, struct brumate_error *err)
{
	struct transfer *t = l->transfer;
	/* Waking takes as long as a tenth of a copy, and with one copy at a time the GPU is idle during that. */
	bool spin = takes_turns(t) && machine_cores() >= SPIN_CORES_MIN;
	int r = gpus_get(t->gpus, &l->memory, l->uuid, err);

	if (r == 0)
		r = t->ops->reserve(l->memory, t->total_bytes, &l->at, err);
	l->reserved = r == 0;
	if (r == 0)
		r = t->ops->lane_open(l->memory, spin, &l->queue, err);
	if (r < 0)
		return r;
	if (t->flags & TRANSFER_WITH_DIGESTS)
		digests_open_lane(l);
	pthread_mutex_lock(&t->lock);
	l->opened = true;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return 0;
}

static int import_piece(struct lane *l, struct lane_piece *p, struct brumate_error *err)
{
	const struct dev_memory_ops *ops = l->transfer->ops;
	int r = fault_point("data.import");

	if (r < 0)
		return brumate_fail(err, -r, "import: %m");
	r = ops->import(l->memory, p->fd, p->len_bytes, l->at + p->offset, err);
	cleanup_close(&p->fd);
	return r;
}

static int create_piece(struct lane *l, struct lane_piece *p, struct brumate_error *err)
{
	const struct dev_memory_ops *ops = l->transfer->ops;
	int r = fault_point("data.export");

	if (r < 0)
		return brumate_fail(err, -r, "export: %m");
	return ops->create(l->memory, p->len_bytes, l->at + p->offset, &p->fd, err);
}

/* Gives the GPU access to pieces that are mapped without a gap. */
static int allow_pieces(struct lane *l, size_t first, size_t end, struct brumate_error *err)
{
	uint64_t start = lane_piece(l, first)->offset;
	const struct lane_piece *last = lane_piece(l, end - 1);

	return l->transfer->ops->allow(l->memory, l->at + start,
				       last->offset + last->len_bytes - start, err);
}

/* Makes pieces to which the GPU has access visible to the other threads. */
static void publish_pieces(struct lane *l, size_t first, size_t end)
{
	struct transfer *t = l->transfer;

	pthread_mutex_lock(&t->lock);
	for (size_t i = first; i < end; i++)
		l->usable_bytes += lane_piece(l, i)->len_bytes;
	t->n_made += end - first;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

/*
 * Giving a GPU access to memory waits for copies that go in: a millisecond for 48 MiB when they fill the link,
 * instead of 0.03; and it delays driver calls of other lanes. So memory is allocated first, and copies that take no
 * turns begin when all is allocated, or when that takes too long.
 */
static bool may_publish(const struct lane *l, size_t end, uint64_t start_ns)
{
	return l->transfer->to_host || takes_turns(l->transfer) || end == l->n_pieces ||
	       clock_now_ns() - start_ns >= MAKES_ALONE_NS;
}

static int map_pieces(struct lane *l, struct brumate_error *err)
{
	struct transfer *t = l->transfer;
	size_t first = 0, published = 0;
	uint64_t bytes = 0, start_ns = 0;
	int r = 0;

	for (size_t i = 0; i < l->n_pieces && r == 0; i++) {
		struct lane_piece *p = lane_piece(l, i);

		r = lane_wait_turn(l, t->to_host ? l->pieces[i] + 1 : 0);
		if (r < 0)
			return brumate_fail(err, -r, "cancelled");
		if (!start_ns)
			start_ns = clock_now_ns();
		r = t->to_host ? import_piece(l, p, err) : create_piece(l, p, err);
		if (r < 0)
			return brumate_wrap(err, r, "piece %zu of %zu", l->pieces[i] + 1,
					    t->n_pieces);
		l->n_mapped = i + 1;
		bytes += p->len_bytes;
		if (bytes < BATCH_BYTES && lane_is_followed(l, i))
			continue;
		r = allow_pieces(l, first, i + 1, err);
		first = i + 1;
		bytes = 0;
		if (r == 0 && may_publish(l, first, start_ns)) {
			publish_pieces(l, published, first);
			published = first;
		}
	}
	return r;
}

/* Unmaps the pieces before @end that are still mapped. */
static void unmap_pieces(struct lane *l, size_t end)
{
	const struct dev_memory_ops *ops = l->transfer->ops;
	struct brumate_error err;

	for (size_t first = l->n_unmapped; l->n_unmapped < end;) {
		uint64_t start = lane_piece(l, first)->offset;
		const struct lane_piece *last = lane_piece(l, l->n_unmapped++);

		if (l->n_unmapped < end && lane_is_followed(l, l->n_unmapped - 1))
			continue;
		if (ops->unmap(l->memory, l->at + start, last->offset + last->len_bytes - start,
			       &err) < 0)
			log_warn("%s", err.text);
		first = l->n_unmapped;
	}
}

/* How much of the lane must be done before @p is unmapped. On the way in nothing is unmapped during the first three
 * quarters, as the driver restores its part then and such calls wait; after that one piece at a time, as a copy that
 * is to start waits for the call. */
static uint64_t unmap_after(const struct lane *l, const struct lane_piece *p)
{
	const uint64_t all = lane_piece(l, l->n_pieces - 1)->lane_end;

	return l->transfer->to_host ? p->lane_end : all - (all - p->lane_end) / 4;
}

/* Unmaps what is copied (and on the way in compared) while the rest is still being copied, so that the end of the
 * transfer need not wait for it. */
static void unmap_behind(struct lane *l)
{
	struct transfer *t = l->transfer;
	const uint64_t *done =
		!t->to_host && l->n_digesters ? &l->digested_bytes : &l->copied_bytes;
	const uint64_t least =
		t->to_host ? lane_piece(l, l->n_pieces - 1)->lane_end / BEHIND_GOES : 0;
	uint64_t bytes = 0;
	bool stopped = false;

	for (size_t i = 0; i < l->n_pieces && !stopped; i++) {
		const struct lane_piece *p = lane_piece(l, i);

		bytes += p->len_bytes;
		if (bytes < least && i + 1 < l->n_pieces)
			continue;
		pthread_mutex_lock(&t->lock);
		while (t->state != TRANSFER_STOPPED && *done < unmap_after(l, p))
			pthread_cond_wait(&t->changed, &t->lock);
		stopped = t->state == TRANSFER_STOPPED;
		pthread_mutex_unlock(&t->lock);
		if (!stopped && fault_point("data.unmap") == 0)
			unmap_pieces(l, i + 1);
		bytes = 0;
	}
}

/* Releases all that the lane has on its GPU. No thread uses it any more. */
static void close_lane(struct lane *l)
{
	const struct dev_memory_ops *ops = l->transfer->ops;

	digests_close_lane(l);
	if (l->queue)
		ops->lane_close(l->queue);
	pool_put(l->ring);
	unmap_pieces(l, l->n_mapped);
	if (l->reserved)
		ops->unreserve(l->memory, l->at, l->transfer->total_bytes);
}

/* The last act of each of a lane's threads. Memory that went out must be free when the end is reported; memory that
 * came in is handed to the caller before it is unmapped here. */
static void end_thread(struct lane *l)
{
	struct transfer *t = l->transfer;

	pthread_mutex_lock(&t->lock);
	bool closes = --l->n_active == 0;
	pthread_mutex_unlock(&t->lock);
	if (closes && t->to_host)
		close_lane(l);
	pthread_mutex_lock(&t->lock);
	bool last = --t->n_running == 0;
	pthread_mutex_unlock(&t->lock);
	if (last)
		eventfd_write(t->wake_fd, 1);
	if (closes && !t->to_host)
		close_lane(l);
}

static void *run_mapping(void *arg)
{
	struct lane *l = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = open_lane(l, &err);

	if (r == 0)
		r = map_pieces(l, &err);
	if (r < 0)
		transfer_fail(l->transfer, &err);
	else if (!(l->transfer->flags & TRANSFER_LIVE))
		unmap_behind(l);
	end_thread(l);
	return NULL;
}

/* ---- copies ---- */

/* A copy of bytes of one fate, in one segment. */
struct copy {
	struct work work;
	struct lane *lane;
	enum chunk_fate fate;
	uint64_t at, bytes, ticket;
	struct segment *segment; /* NULL: it is neither read nor written */
	bool zero;		 /* the segment, or the part that exists, is zero already */
	uint64_t inside;	 /* position of the copy's bytes in the segment */
	char *slot;		 /* NULL: the copy is direct */
	enum {
		COPY_OURS,
		COPY_GIVEN,
		COPY_MOVED
	} moved;   /* by a worker; under the transfer's lock */
	int error; /* of the worker; under the lock, too */
};

/* The copying thread of a lane. */
struct copier {
	struct lane *lane;
	struct position position;
	struct copy copies[WINDOW];
	size_t n_slots; /* of SLOT_BYTES each, in the lane's ring */
};

/* Takes a ring of up to @n slots, as many as there is room for. Returns their number; 0: there is not even room for
 * the fewest. */
static size_t take_slots(struct lane *l, size_t n, bool must)
{
	for (; n >= SLOTS_MIN; n /= 2) {
		l->ring = pool_take_ring(gpus_pool(l->transfer->gpus), n * SLOT_BYTES, must);
		if (l->ring)
			return n;
	}
	return 0;
}

/* Without a ring, copies go to pageable memory at a third of the speed. Copies to a disk need a ring, pinned or not. */
static int take_ring(struct copier *c, struct brumate_error *err)
{
	struct lane *l = c->lane;
	struct transfer *t = l->transfer;
	const bool must = t->host->spilled;
	size_t n = SLOTS_ALL / t->n_lanes;
	bool usable = false;

	n = take_slots(l, n > WINDOW ? WINDOW : n < SLOTS_MIN ? SLOTS_MIN : n, must);
	if (n && segment_populate(l->ring, NULL) >= 0) {
		segment_pin(l->ring, t->ops, l->memory);
		usable = l->ring->pinning == SEGMENT_PINNED || must;
	}
	if (usable) {
		c->n_slots = n;
		return 0;
	}
	pool_put(take_ptr(&l->ring));
	log_debug("no ring: no memory that can be pinned");
	return must ? brumate_fail(err, ENOMEM, "no memory for a ring: %m") : 0;
}

static uint64_t copy_bytes(const struct transfer *t)
{
	if (!takes_turns(t))
		return COPY_BYTES;
	return t->to_host ? TURN_OUT_BYTES : TURN_IN_BYTES;
}

/* Whether copies wait until digests show what has to be copied. */
static bool is_held_back(const struct lane *l)
{
	return l->n_digesters && l->transfer->to_host;
}

/* Finds bytes of one fate, and their place. Returns LANE_…, or <0. */
static int find_copy(struct copier *c, struct copy *s, bool block)
{
	struct lane *l = c->lane;
	const struct transfer *t = l->transfer;
	const uint64_t *limit = is_held_back(l) ? &l->digested_bytes : &l->usable_bytes;
	bool knows = is_held_back(l) || (!t->to_host && digests_are_known(t));
	int r = lane_find_run(l, &c->position, limit, block, knows ? ZERO_BYTES : copy_bytes(t),
			      &s->bytes);

	if (r != LANE_FOUND)
		return r;
	uint64_t offset = lane_offset(l, &c->position);
	uint64_t inside = offset % t->host->segment_bytes;
	s->lane = l;
	s->at = l->at + offset;
	s->inside = inside;
	s->fate = knows ? digests_fate(t, offset, &s->bytes) : CHUNK_COPY;
	if (s->fate == CHUNK_ZERO && !t->to_host)
		return r;
	if (s->bytes > t->host->segment_bytes - inside)
		s->bytes = t->host->segment_bytes - inside;
	return r;
}

/* Whether the copy neither reads nor writes the host copy's memory. */
static bool needs_no_segment(struct transfer *t, const struct copy *s, size_t segment)
{
	return s->fate == CHUNK_KEEP ||
	       (s->fate == CHUNK_ZERO &&
		(!t->to_host || segments_skips_zeros(t->host, segment, true)));
}

/* Prepares the next copy, but does not begin it. Returns LANE_…, or <0. */
static int place_copy(struct copier *c, struct copy *s, bool block, struct brumate_error *err)
{
	struct lane *l = c->lane;
	struct transfer *t = l->transfer;
	const size_t slot = (size_t)(s - c->copies);

	*s = (struct copy){ .zero = true };
	int r = find_copy(c, s, block);
	if (r != LANE_FOUND)
		return r;
	const size_t i = (size_t)((s->at - l->at) / t->host->segment_bytes);
	if (!needs_no_segment(t, s, i)) {
		r = segments_get(t->host, i, block, &s->segment, &s->zero, err);
		if (r != 0)
			return r < 0 ? r : LANE_NOT_YET;
		bool direct = s->segment->backing != SEGMENT_DISK &&
			      (s->segment->pinning == SEGMENT_PINNED || slot >= c->n_slots);
		uint64_t most = direct ? copy_bytes(t) : SLOT_BYTES;
		s->bytes = s->bytes < most ? s->bytes : most;
		s->slot = direct ? NULL : l->ring->at + slot * SLOT_BYTES;
	}
	lane_advance(l, &c->position, s->bytes);
	return LANE_FOUND;
}

/* Reads into a slot. That is faster than mapping the pages of a segment that was never mapped. */
static int read_slot(const struct copy *s)
{
	ssize_t n = fd_read_at(s->segment->fd, s->slot, s->bytes, s->inside);

	return n < (ssize_t)s->bytes ? n < 0 ? (int)n : -EIO : 0;
}

/* Moves bytes between a slot and a disk. */
static int move_spilled(const struct copy *s)
{
	const struct segments *h = s->lane->transfer->host;
	uint64_t at = s->at - s->lane->at;
	bool write = s->lane->transfer->to_host;
	int r = fault_point(write ? "data.spill-write" : "data.spill-read");

	if (r < 0)
		return r;
	if (s->fate == CHUNK_ZERO)
		memset(s->slot, 0, s->bytes);
	return (write ? spill_write : spill_read)(s->segment->fd, &h->key, at - s->inside, at,
						  s->slot, s->bytes);
}

/* Runs in a worker: moves bytes between a slot and the host copy, or zeros them there. */
static void move_copy(struct work *work)
{
	struct copy *s = (struct copy *)work;
	struct transfer *t = s->lane->transfer;
	int r = 0;

	if (s->segment->backing == SEGMENT_DISK)
		r = move_spilled(s);
	else if (s->fate == CHUNK_ZERO)
		segment_zero(s->segment, s->inside, s->bytes);
	else if (t->to_host)
		memcpy(s->segment->at + s->inside, s->slot, s->bytes);
	else
		r = read_slot(s);
	pthread_mutex_lock(&t->lock);
	s->moved = COPY_MOVED;
	s->error = r;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

static void give_copy(struct copy *s)
{
	s->work.run = move_copy;
	s->moved = COPY_GIVEN;
	work_queue_add(s->lane->transfer->workers, &s->work);
}

static int wait_moved(struct copy *s, struct brumate_error *err)
{
	struct transfer *t = s->lane->transfer;

	pthread_mutex_lock(&t->lock);
	while (s->moved == COPY_GIVEN)
		pthread_cond_wait(&t->changed, &t->lock);
	int r = s->error;
	pthread_mutex_unlock(&t->lock);
	return r < 0 ? brumate_fail(err, -r, "host copy: %s: %m", t->to_host ? "write" : "read")
		     : 0;
}

/* The GPU's end of the copy in host memory: the host copy itself, or the slot. */
static char *near_end(const struct copy *s)
{
	return s->slot ? s->slot : s->segment->at + s->inside;
}

static int begin_copy(struct copier *c, struct copy *s, bool block, struct brumate_error *err)
{
	struct lane *l = c->lane;
	struct transfer *t = l->transfer;
	int r = place_copy(c, s, block, err);

	if (r != LANE_FOUND)
		return r;
	if (s->fate == CHUNK_ZERO && t->to_host && !s->zero)
		give_copy(s);
	if (s->fate == CHUNK_KEEP || (s->fate == CHUNK_ZERO && t->to_host))
		return LANE_FOUND;
	r = fault_point("data.copy");
	if (r < 0)
		return brumate_fail(err, -r, "copy: %m");
	if (s->fate == CHUNK_ZERO) {
		r = t->ops->zero(l->queue, s->at, s->bytes, &s->ticket, err);
		return r < 0 ? r : LANE_FOUND;
	}
	if (t->to_host)
		r = t->ops->copy_out(l->queue, near_end(s), s->at, s->bytes, &s->ticket, err);
	else if (s->slot)
		give_copy(s);
	return r < 0 ? r : LANE_FOUND;
}

/* Halfway through a copy: passes it from the GPU to a worker, or from the worker to the GPU. */
static int turn_copy(struct copy *s, struct brumate_error *err)
{
	struct lane *l = s->lane;
	const struct dev_memory_ops *ops = l->transfer->ops;

	if (s->fate != CHUNK_COPY)
		return 0;
	if (!l->transfer->to_host) {
		int r = wait_moved(s, err);

		return r < 0 ? r
			     : ops->copy_in(l->queue, s->at, near_end(s), s->bytes, &s->ticket,
					    err);
	}
	int r = ops->wait(l->queue, s->ticket, err);
	if (r == 0 && s->slot)
		give_copy(s);
	return r;
}

/* Counts what went over the link, for statistics. */
static void count_copy(const struct copy *s)
{
	const struct transfer *t = s->lane->transfer;
	const uint64_t bytes = s->fate == CHUNK_COPY ? s->bytes : 0;
	const uint64_t disk = s->segment && s->segment->backing == SEGMENT_DISK ? bytes : 0;
	const struct broker_moved out = { .out_bytes = bytes, .written_bytes = disk };
	const struct broker_moved in = { .in_bytes = bytes, .read_bytes = disk };

	if (bytes)
		gpus_count(t->gpus, s->lane->uuid, t->to_host ? &out : &in);
}

static int wait_copy(struct copy *s, struct brumate_error *err)
{
	const struct transfer *t = s->lane->transfer;

	return t->to_host ? wait_moved(s, err) : t->ops->wait(s->lane->queue, s->ticket, err);
}

static int note_copied(const struct copy *s, struct brumate_error *err)
{
	struct transfer *t = s->lane->transfer;
	int r = 0;

	count_copy(s);
	pthread_mutex_lock(&t->lock);
	t->done_bytes += s->bytes;
	t->zero_bytes += s->fate == CHUNK_ZERO ? s->bytes : 0;
	t->same_bytes += s->fate == CHUNK_KEEP ? s->bytes : 0;
	s->lane->copied_bytes += s->bytes;
	if (!t->to_host || t->early)
		lane_note_copied(t);
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	if (!t->to_host && (r = fault_point("data.filled")) < 0)
		brumate_fail(err, -r, "copy: %m");
	return r;
}

/* How many unfinished copies the GPU may have. */
static size_t most_at_once(const struct copier *c, size_t most, bool turns)
{
	if (!turns)
		return most;
	return driver_is_through(c->lane->transfer) ? TURNS_ALONE : 1;
}

/* On the way out a copy occupies the GPU when it is begun, on the way in when it is passed on. */
static size_t most_begun(const struct copier *c, size_t window, bool turns)
{
	return most_at_once(c, window, turns && c->lane->transfer->to_host);
}

static size_t most_turned(const struct copier *c, size_t window, bool turns)
{
	return most_at_once(c, window / 2, turns && !c->lane->transfer->to_host);
}

/* Keeps a window of copies under way: half of it for copies of the GPU, half for those of workers. */
static int copy_pieces(struct copier *c, struct brumate_error *err)
{
	const struct transfer *t = c->lane->transfer;
	size_t begun = 0, turned = 0, ended = 0;
	const size_t window = c->n_slots ? c->n_slots : WINDOW;
	const bool turns = takes_turns(t) && !c->n_slots;
	bool more = true;
	int r = 0;

	while (r >= 0 && (more || ended < begun)) {
		if (more && begun - ended < window &&
		    begun - turned < most_begun(c, window, turns)) {
			r = begin_copy(c, &c->copies[begun % window], begun == ended, err);
			begun += r == LANE_FOUND;
			more = r != LANE_DONE;
			if (r != LANE_NOT_YET)
				continue;
		}
		if (turned < begun && turned - ended < most_turned(c, window, turns)) {
			r = turn_copy(&c->copies[turned++ % window], err);
			continue;
		}
		r = wait_copy(&c->copies[ended % window], err);
		/* The GPU may be idle until the next copy begins, so meanwhile the other threads learn of this one. */
		if (r >= 0 && turns && turned < begun &&
		    turned - ended <= most_turned(c, window, turns))
			r = turn_copy(&c->copies[turned++ % window], err);
		if (r >= 0)
			r = note_copied(&c->copies[ended++ % window], err);
	}
	for (; r < 0 && ended < begun; ended++)
		wait_moved(&c->copies[ended % window], NULL);
	return r < 0 ? r : 0;
}

/* ---- copies of memory that is written meanwhile ---- */

struct stage {
	uint64_t at; /* address of its mapping */
	bool mapped;
	uint64_t offset, bytes; /* position in the host copy, and length */
	uint64_t ticket;	/* of the last copy out of it */
	bool copies;
};

struct live {
	struct lane *lane;
	uint64_t stage_bytes;
	uint64_t at, room; /* address range of the stages */
	struct stage stages[STAGES];
	struct position position;
};

/*
 * The program's kernels and ours take turns on the GPU: the larger a stage, the fewer the turns, and the more of the
 * GPU one computation of digests uses. Stages take memory that the program may need, so they are large only if there
 * is plenty, and smaller than usual where the GPU is nearly full, which is when live copies are made.
 */
static uint64_t choose_stage_bytes(const struct lane *l)
{
	const struct transfer *t = l->transfer;
	const uint64_t free_bytes = t->ops->free_bytes(l->memory);
	uint64_t bytes = STAGE_MOST;

	while (bytes > STAGE_LEAST && (t->total_bytes < STAGES_IN_ALL * bytes ||
				       free_bytes / STAGES_FREE_PART < STAGES * bytes))
		bytes /= 2;
	while (bytes > STAGE_TIGHT && free_bytes / 2 < STAGES * bytes)
		bytes /= 2;
	return bytes;
}

static int open_stage(struct live *v, size_t i, struct brumate_error *err)
{
	const struct dev_memory_ops *ops = v->lane->transfer->ops;
	struct stage *s = &v->stages[i];
	auto_close int fd = -1;

	s->at = v->at + i * v->stage_bytes;
	int r = ops->create(v->lane->memory, v->stage_bytes, s->at, &fd, err);
	if (r < 0)
		return r;
	s->mapped = true;
	return ops->allow(v->lane->memory, s->at, v->stage_bytes, err);
}

static void close_stages(struct live *v)
{
	const struct dev_memory_ops *ops = v->lane->transfer->ops;
	struct brumate_error err;

	for (size_t i = 0; i < STAGES; i++)
		if (v->stages[i].mapped &&
		    ops->unmap(v->lane->memory, v->stages[i].at, v->stage_bytes, &err) < 0)
			log_warn("%s", err.text);
	if (v->room)
		ops->unreserve(v->lane->memory, v->at, v->room);
}

static int open_stages(struct live *v, struct brumate_error *err)
{
	struct lane *l = v->lane;
	const struct dev_memory_ops *ops = l->transfer->ops;

	if (l->transfer->host->spilled)
		return brumate_fail(err, EOPNOTSUPP, "host memory is too short for it");
	if (l->n_digesters < STAGES)
		return brumate_fail(err, ENOSPC,
				    "no digests on the GPU: it has no room, or they are off");
	v->stage_bytes = choose_stage_bytes(l);
	int r = ops->reserve(l->memory, STAGES * v->stage_bytes, &v->at, err);
	if (r < 0)
		return r;
	v->room = STAGES * v->stage_bytes;
	for (size_t i = 0; i < STAGES && r == 0; i++)
		r = open_stage(v, i, err);
	return r;
}

/* Copies the next run of memory into the stage, and computes its digests. */
static int fill_stage(struct live *v, size_t i, bool block, struct brumate_error *err)
{
	struct lane *l = v->lane;
	struct stage *s = &v->stages[i];
	int r = lane_find_run(l, &v->position, &l->usable_bytes, block, v->stage_bytes, &s->bytes);

	if (r != LANE_FOUND)
		return r;
	if ((r = fault_point("data.live")) < 0)
		return brumate_fail(err, -r, "live copy: %m");
	s->copies = false;
	s->offset = lane_offset(l, &v->position);
	lane_advance(l, &v->position, s->bytes);
	r = l->transfer->ops->copy_and_digest(l->digesters[i], s->at, l->at + s->offset, s->bytes,
					      err);
	return r < 0 ? r : LANE_FOUND;
}

/* Begins to copy one run of a fate, within a segment. */
static int store_run(struct live *v, struct stage *s, uint64_t from, uint64_t bytes,
		     enum chunk_fate fate, struct brumate_error *err)
{
	struct lane *l = v->lane;
	struct segments *h = l->transfer->host;
	uint64_t offset = s->offset + from;
	size_t i = (size_t)(offset / h->segment_bytes);
	struct segment *segment;
	bool zero;

	if (fate == CHUNK_KEEP || (fate == CHUNK_ZERO && segments_skips_zeros(h, i, true)))
		return 0;
	int r = segments_get(h, i, true, &segment, &zero, err);
	if (r < 0)
		return r;
	if (fate == CHUNK_ZERO && !zero)
		segment_zero(segment, offset % h->segment_bytes, bytes);
	if (fate != CHUNK_COPY)
		return 0;
	s->copies = true;
	gpus_count(l->transfer->gpus, l->uuid, &(struct broker_moved){ .out_bytes = bytes });
	return l->transfer->ops->copy_out(l->queue, segment->at + offset % h->segment_bytes,
					  s->at + from, bytes, &s->ticket, err);
}

/* Once the digests are known: begins the copies of what the host copy lacks. */
static int empty_stage(struct live *v, size_t i, struct brumate_error *err)
{
	struct lane *l = v->lane;
	struct transfer *t = l->transfer;
	struct stage *s = &v->stages[i];
	struct digest digests[STAGE_MOST / CHUNK_BYTES_MAX];
	bool zero[STAGE_MOST / CHUNK_BYTES_MAX];
	uint64_t zeros = 0, same = 0;
	int r = t->ops->digest_wait(l->digesters[i], digests, zero, err);

	if (r == 0)
		r = digests_learn(t, s->offset, digests, zero, s->bytes / CHUNK_BYTES_MAX, err);
	for (uint64_t from = 0, bytes; r == 0 && from < s->bytes; from += bytes) {
		uint64_t left =
			t->host->segment_bytes - (s->offset + from) % t->host->segment_bytes;

		bytes = s->bytes - from < left ? s->bytes - from : left;
		enum chunk_fate fate = digests_fate(t, s->offset + from, &bytes);
		zeros += fate == CHUNK_ZERO ? bytes : 0;
		same += fate == CHUNK_KEEP ? bytes : 0;
		r = store_run(v, s, from, bytes, fate, err);
	}
	pthread_mutex_lock(&t->lock);
	t->zero_bytes += zeros;
	t->same_bytes += same;
	pthread_mutex_unlock(&t->lock);
	return r;
}

static int finish_stage(struct live *v, size_t i, struct brumate_error *err)
{
	struct transfer *t = v->lane->transfer;
	struct stage *s = &v->stages[i];
	int r = s->copies ? t->ops->wait(v->lane->queue, s->ticket, err) : 0;

	pthread_mutex_lock(&t->lock);
	t->done_bytes += s->bytes;
	pthread_mutex_unlock(&t->lock);
	return r;
}

/* Copies everything: one stage is filled and digested while the other is copied out. */
static int copy_through(struct live *v, struct brumate_error *err)
{
	size_t filled = 0, emptied = 0, finished = 0;
	bool more = true;
	int r = 0;

	while (r >= 0 && (more || finished < filled)) {
		if (more && filled - finished < STAGES) {
			r = fill_stage(v, filled % STAGES, filled == finished, err);
			filled += r == LANE_FOUND;
			more = r != LANE_DONE;
			if (r != LANE_NOT_YET)
				continue;
		}
		if (emptied < filled)
			r = empty_stage(v, emptied++ % STAGES, err);
		else
			r = finish_stage(v, finished++ % STAGES, err);
	}
	return r < 0 ? r : 0;
}

static int copy_live(struct lane *l, struct brumate_error *err)
{
	struct live v = { .lane = l };
	int r = open_stages(&v, err);

	if (r == 0)
		r = copy_through(&v, err);
	/* All users of a stage are waited for before the stage is freed. */
	digests_close_lane(l);
	if (l->queue) {
		l->transfer->ops->lane_close(l->queue);
		l->queue = NULL;
	}
	close_stages(&v);
	return r < 0 ? brumate_wrap(err, r, "live copy") : 0;
}

/* ---- no copies ---- */

/* Counts the bytes of the lane that are zero. */
static int count_zeros(struct lane *l, struct brumate_error *err)
{
	struct transfer *t = l->transfer;
	struct position position = { 0 };
	uint64_t bytes;
	int r;

	while ((r = lane_find_run(l, &position, &l->digested_bytes, true, ZERO_BYTES, &bytes)) ==
	       LANE_FOUND) {
		bool zero = digests_fate(t, lane_offset(l, &position), &bytes) == CHUNK_ZERO;

		lane_advance(l, &position, bytes);
		pthread_mutex_lock(&t->lock);
		t->done_bytes += bytes;
		t->zero_bytes += zero ? bytes : 0;
		l->copied_bytes += bytes;
		pthread_cond_broadcast(&t->changed);
		pthread_mutex_unlock(&t->lock);
	}
	return r < 0 ? brumate_fail(err, -r, "count: %m") : 0;
}

/* ---- the other threads ---- */

/* Waits until the host copy has the memory that it needs. */
static int wait_settled(struct transfer *t)
{
	pthread_mutex_lock(&t->lock);
	while (!t->settled && t->state != TRANSFER_STOPPED)
		pthread_cond_wait(&t->changed, &t->lock);
	int r = t->state == TRANSFER_STOPPED ? -ECANCELED : 0;
	pthread_mutex_unlock(&t->lock);
	return r;
}

static void *run_copying(void *arg)
{
	struct lane *l = arg;
	struct transfer *t = l->transfer;
	struct copier copier = { .lane = l };
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = lane_wait_turn(l, 0);

	if (r == 0)
		r = wait_settled(t);
	if (r < 0)
		brumate_fail(&err, -r, "cancelled");
	if (r == 0 && t->flags & TRANSFER_COUNT && !l->n_digesters)
		r = brumate_fail(&err, EOPNOTSUPP,
				 "no digests on the GPU: it has no room, or they are off");
	if (r == 0 && t->host && t->to_host && !is_held_back(l))
		segments_want(t->host, 0, t->host->n_segments);
	if (r == 0 && t->host && t->host->needs_ring && !(t->flags & TRANSFER_LIVE))
		r = take_ring(&copier, &err);
	if (r == 0)
		r = t->flags & TRANSFER_COUNT  ? count_zeros(l, &err)
		    : t->flags & TRANSFER_LIVE ? copy_live(l, &err)
		    : t->stream		       ? stream_copy(l, takes_turns(t), &err)
					       : copy_pieces(&copier, &err);
	if (r < 0) {
		if (!err.code)
			brumate_fail(&err, -r, "copy: %m");
		transfer_fail(t, &err);
	}
	end_thread(l);
	return NULL;
}

static int fail_growth(struct brumate_error *err)
{
	return brumate_fail(err, ENOSPC, "host copy: memory is too short for what was zero in it");
}

/* A base is in memory. The pages that it lacks take more, of which the pool does not know. */
static int check_growth(struct transfer *t, const bool *needed, struct brumate_error *err)
{
	const size_t n = segments_count_empty(t->host, needed);

	return !n || pool_make_room(gpus_pool(t->gpus), n, t->host->segment_bytes)
		       ? 0
		       : fail_growth(err);
}

/* Whether it is to be seen first how much a base grows. */
static bool may_grow_too_much(const struct transfer *t)
{
	const size_t n = t->flags & TRANSFER_BASE && !t->host->spilled
				 ? segments_count_empty(t->host, NULL)
				 : 0;

	return n && !pool_has_room(gpus_pool(t->gpus), n, t->host->segment_bytes);
}

/* For a copy that would not fit into memory if nothing in it was zero: takes what it needs. No copy has begun yet, so if
 * there is too little room, that shows at once. */
static int settle_host(struct transfer *t, struct brumate_error *err)
{
	auto_free bool *needed = digests_find_needed(t);
	int r = !needed		  ? brumate_fail(err, ENOMEM, "%m")
		: t->host->sparse ? segments_settle(t->host, needed, err)
				  : check_growth(t, needed, err);

	if (r == 0)
		digests_want(t, 0, t->total_bytes);
	return r;
}

/* The digests of the lane are known. The last lane has the copies of all begin. */
static int note_digested(struct lane *l, struct brumate_error *err)
{
	struct transfer *t = l->transfer;

	pthread_mutex_lock(&t->lock);
	bool settles = ++t->n_digested == t->n_lanes && !t->settled;
	pthread_mutex_unlock(&t->lock);
	int r = settles ? settle_host(t, err) : 0;
	if (r < 0 || !settles)
		return r;
	pthread_mutex_lock(&t->lock);
	t->settled = true;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return 0;
}

static void *run_digests(void *arg)
{
	struct lane *l = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = digests_compute(l, &err);

	if (r == 0)
		r = note_digested(l, &err);
	if (r < 0) {
		if (!err.code)
			brumate_fail(&err, -r, "digests: cancelled");
		transfer_fail(l->transfer, &err);
	}
	end_thread(l);
	return NULL;
}

static int start_lane(struct lane *l, struct brumate_error *err)
{
	static void *(*const runs[])(void *) = { run_mapping, run_copying, run_digests };
	const uint32_t flags = l->transfer->flags;
	const size_t n = flags & TRANSFER_WITH_DIGESTS && !(flags & TRANSFER_LIVE) ? 3 : 2;

	for (; l->n_threads < n; l->n_threads++) {
		int r = thread_start(&l->threads[l->n_threads], runs[l->n_threads], l);

		if (r < 0)
			return brumate_fail(err, -r, "threads: %m");
		l->transfer->n_running++;
		l->n_active++;
	}
	return 0;
}

static int start_lanes(struct transfer *t, struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i < t->n_lanes && r == 0; i++)
		r = start_lane(&t->lanes[i], err);
	pthread_mutex_unlock(&t->lock);
	return r;
}

static void join_lanes(struct transfer *t)
{
	for (size_t i = 0; i < t->n_lanes; i++)
		for (size_t k = 0; k < t->lanes[i].n_threads; k++)
			pthread_join(t->lanes[i].threads[k], NULL);
	for (size_t i = 0; i < t->n_lanes; i++)
		free(t->lanes[i].pieces);
	free(take_ptr(&t->lanes));
	t->n_lanes = 0;
}

/* ---- the transfer ---- */

/* Finds the lane for the GPU @uuid, or adds it. */
static int find_lane(struct transfer *t, const uint8_t *uuid, size_t *ret)
{
	if (!t->lanes)
		t->lanes = calloc(DEV_GPUS_MAX, sizeof(*t->lanes));
	if (!t->lanes)
		return -ENOMEM;
	for (size_t i = 0; i < t->n_lanes; i++) {
		if (memcmp(t->lanes[i].uuid, uuid, DEV_UUID_BYTES))
			continue;
		*ret = i;
		return 0;
	}
	if (t->n_lanes == DEV_GPUS_MAX)
		return -EOVERFLOW;
	t->lanes[t->n_lanes].transfer = t;
	memcpy(t->lanes[t->n_lanes].uuid, uuid, DEV_UUID_BYTES);
	*ret = t->n_lanes++;
	return 0;
}

static int add_to_lane(struct transfer *t, size_t piece)
{
	struct lane *l = &t->lanes[t->pieces[piece].lane];
	size_t *pieces = array_room(l->pieces, l->n_pieces, sizeof(*pieces));

	if (!pieces)
		return -ENOMEM;
	l->pieces = pieces;
	uint64_t before = l->n_pieces ? lane_piece(l, l->n_pieces - 1)->lane_end : 0;

	t->pieces[piece].lane_end = before + t->pieces[piece].len_bytes;
	l->pieces[l->n_pieces++] = piece;
	return 0;
}

static int add_pieces(struct transfer *t, const struct transfer_piece *pieces, size_t n,
		      struct brumate_error *err)
{
	for (size_t i = 0; i < n; i++) {
		struct lane_piece *p = &t->pieces[i];

		*p = (struct lane_piece){ .offset = t->total_bytes,
					  .len_bytes = pieces[i].len_bytes,
					  .fd = -1 };
		int r = find_lane(t, pieces[i].gpu, &p->lane);
		if (r == 0)
			r = add_to_lane(t, i);
		if (r < 0)
			return brumate_fail(err, -r, "piece %zu: %m", i);
		t->n_pieces++;
		t->total_bytes = transfer_next(p->offset, p->len_bytes);
		if (t->total_bytes > TRANSFER_BYTES_MAX)
			return brumate_fail(err, EFBIG, "pieces: too much memory: %m");
	}
	return 0;
}

/* Chooses for each segment the memory node near the GPU of the piece that starts it or reaches into it. */
static int *choose_nodes(const struct transfer *t, uint64_t segment_bytes)
{
	size_t n = (size_t)((t->total_bytes - 1) / segment_bytes + 1), piece = 0;
	int *nodes = calloc(n, sizeof(*nodes)), of_lane[DEV_GPUS_MAX];

	for (size_t i = 0; nodes && i < t->n_lanes; i++)
		of_lane[i] = t->ops->node(t->lanes[i].uuid);
	for (size_t i = 0; nodes && i < n; i++) {
		while (transfer_next(t->pieces[piece].offset, t->pieces[piece].len_bytes) <=
		       i * segment_bytes)
			piece++;
		nodes[i] = of_lane[t->pieces[piece].lane];
	}
	return nodes;
}

/* Whether there is memory for the copy, if none of it is zero. */
static bool has_room_for_all(const struct transfer *t)
{
	const uint64_t segment_bytes = pool_segment_bytes(t->total_bytes);

	return pool_has_room(gpus_pool(t->gpus), (size_t)((t->total_bytes - 1) / segment_bytes + 1),
			     segment_bytes);
}

static int take_host_memory(struct transfer *t, struct brumate_error *err)
{
	auto_free int *nodes = choose_nodes(t, pool_segment_bytes(t->total_bytes));
	struct segments *host;

	if (!nodes)
		return brumate_fail(err, ENOMEM, "pieces: %m");
	const bool sparse = t->flags & TRANSFER_WITH_DIGESTS && !has_room_for_all(t);
	int r = sparse ? segments_new_sparse(&host, t->gpus, t->total_bytes, nodes, err)
		       : segments_new(&host, t->gpus, t->total_bytes, nodes, err);
	if (r < 0)
		return r;
	if (!(t->flags & TRANSFER_WITH_DIGESTS))
		segments_want(host, 0, host->n_segments);
	pthread_mutex_lock(&t->lock); /* the lanes run already, and may have failed */
	t->host = host;
	t->settled = !sparse || t->flags & TRANSFER_LIVE;
	if (t->state == TRANSFER_STOPPED)
		segments_stop(host);
	pthread_mutex_unlock(&t->lock);
	return 0;
}

int transfer_new(struct transfer **ret, struct driver *driver, struct gpus *gpus,
		 const struct transfer_piece *pieces, size_t n, uint32_t flags, int wake_fd,
		 struct brumate_error *err)
{
	const struct dev_memory_ops *ops = gpus_ops(gpus);
	struct transfer *t = ops ? calloc(1, sizeof(*t)) : NULL;

	if (!ops)
		return brumate_fail(err, EOPNOTSUPP,
				    "device memory of these GPUs is moved by their driver alone");
	if (!t)
		return brumate_fail(err, ENOMEM, "pieces: %m");
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->changed, NULL);
	t->driver = driver;
	t->gpus = gpus;
	t->ops = ops;
	t->flags = flags;
	t->to_host = flags & TRANSFER_TO_HOST;
	t->done_before = driver_done(driver, driver_part(t));
	t->wake_fd = wake_fd;
	t->settled = true;
	t->pieces = calloc(n, sizeof(*t->pieces));
	int r = t->pieces ? add_pieces(t, pieces, n, err) : brumate_fail(err, ENOMEM, "pieces: %m");
	if (r == 0)
		r = start_lanes(t, err);
	if (r == 0 && t->to_host && !(flags & (TRANSFER_BASE | TRANSFER_COUNT)))
		r = take_host_memory(t, err);
	if (r < 0)
		transfer_free(t);
	else
		*ret = t;
	return r;
}

int transfer_stream(struct transfer *t, struct brumate_error *err)
{
	struct stream *stream;
	int r = stream_new(&stream, t, err);

	if (r < 0)
		return r;
	pthread_mutex_lock(&t->lock); /* the lanes run already */
	t->stream = stream;
	pthread_mutex_unlock(&t->lock);
	return 0;
}

/* Under the lock. */
static int start_workers(struct transfer *t, struct brumate_error *err)
{
	/* Workers that wait for a disk use no processor. */
	unsigned n = t->host->spilled || t->host->sparse ? WORKERS_MAX : workers_cores(WORKERS_MAX);

	if (!t->host->needs_ring && !(t->flags & TRANSFER_WITH_DIGESTS))
		return 0;
	return work_queue_new(&t->workers, n, err);
}

int transfer_start(struct transfer *t, struct segments *host, bool early, struct brumate_error *err)
{
	pthread_mutex_lock(&t->lock);
	if (host)
		t->host = host;
	t->early = early;
	bool grows = t->host && t->to_host && may_grow_too_much(t);
	if (grows && t->flags & TRANSFER_WITH_DIGESTS && !(t->flags & TRANSFER_LIVE))
		t->settled = false;
	if (t->host && !t->to_host && digests_are_known(t))
		t->host->needs_ring = digests_want(t, 0, t->total_bytes);
	else if (t->host && !t->to_host)
		segments_want(t->host, 0, t->host->n_segments);
	int r = grows && t->settled ? fail_growth(err) : t->host ? start_workers(t, err) : 0;
	if (r == 0 && t->state == TRANSFER_WAITING)
		t->state = TRANSFER_RUNNING;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return r;
}

int transfer_give(struct transfer *t, const int *fds, size_t n)
{
	int r = -EBADMSG;

	pthread_mutex_lock(&t->lock);
	if (n <= t->n_pieces - t->n_given) {
		for (size_t i = 0; i < n; i++)
			t->pieces[t->n_given++].fd = fds[i];
		r = 0;
	}
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return r;
}

int transfer_look(struct transfer *t, struct transfer_view *ret, struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&t->lock);
	if (t->state == TRANSFER_STOPPED) {
		*err = t->err;
		r = -t->err.code;
	} else if (t->state == TRANSFER_RUNNING && !t->n_running) {
		r = 1;
	}
	*ret = (struct transfer_view){ .done_bytes = t->done_bytes,
				       .made = t->n_made == t->n_pieces,
				       .n_filled = t->n_filled,
				       .n_whole = t->n_whole };
	pthread_mutex_unlock(&t->lock);
	return r;
}

bool transfer_waits_for_client(struct transfer *t)
{
	pthread_mutex_lock(&t->lock);
	const bool waits = t->to_host ? t->n_given < t->n_pieces : t->stream != NULL;
	pthread_mutex_unlock(&t->lock);
	return waits;
}

void transfer_finish(struct transfer *t)
{
	pthread_mutex_lock(&t->lock);
	if (t->state == TRANSFER_WAITING || t->n_running) {
		t->state = TRANSFER_STOPPED;
		if (t->host)
			segments_stop(t->host);
	}
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	join_lanes(t);
	work_queue_free(take_ptr(&t->workers));
}

void transfer_free(struct transfer *t)
{
	if (!t)
		return;
	transfer_finish(t);
	segments_free(t->host);
	digests_free(t->digests);
	stream_free(t->stream);
	for (size_t i = 0; i < t->n_pieces; i++)
		cleanup_close(&t->pieces[i].fd);
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->changed);
	free(t->pieces);
	free(t);
}
