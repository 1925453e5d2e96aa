// SPDX-License-Identifier: MIT
/* Host copies whose segments are made ready in the background. See segments.h. */
#include "broker/segments.h"
#include "base/fault.h"
#include "wire/host-copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { THREADS_MAX = 8 };

/* Under the lock. */
static bool is_wanted(const struct host_part *p)
{
	return p->state >= HOST_PART_PREPARING;
}

/* ---- in a worker ---- */

/* Zeros those bytes of @s that a holder may see and this copy does not overwrite; @s holds bytes of another copy.
 * Returns whether all of it is zero then. */
static bool zero_rest(const struct segments *h, struct segment *s, size_t i, bool scrub)
{
	uint64_t start = i * h->segment_bytes, used = h->total_bytes - start;

	if (scrub)
		used = 0;
	if (used < s->bytes)
		memset(s->at + used, 0, s->bytes - used);
	return used == 0;
}

/* Populates and pins segment @i. Returns 1 if all of it is zero, 0 if it may hold something. */
static int prepare_segment(struct segments *h, size_t i, bool scrub, struct brumate_error *err)
{
	struct segment *s = h->parts[i].segment;
	bool zero = false;
	int r = fault_point("data.alloc");

	if (r < 0)
		return brumate_fail(err, -r, "host memory: %m");
	if (s->owner == SEGMENT_TAKEN) {
		r = segment_populate(s, err);
		if (r < 0)
			return r;
		zero = s->backing != SEGMENT_DISK && (r == 0 || zero_rest(h, s, i, scrub));
	}
	struct dev_memory *m = s->pinning != SEGMENT_PINNED && segment_is_worth_pinning(s)
				       ? gpus_any(h->gpus)
				       : NULL;
	if (m)
		segment_pin(s, gpus_ops(h->gpus), m);
	return zero;
}

/* Returns whether the part is still to be prepared, and how. */
static bool may_prepare(struct segments *h, const struct host_part *p, bool *ret_scrub)
{
	pthread_mutex_lock(&h->lock);
	bool may = !h->stopped;
	*ret_scrub = p->state == HOST_PART_SCRUBBING;
	pthread_mutex_unlock(&h->lock);
	return may;
}

static void run_part(struct work *work)
{
	struct host_part *p = (struct host_part *)work;
	struct segments *h = p->host;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	bool scrub;

	if (!may_prepare(h, p, &scrub))
		return;
	int r = prepare_segment(h, (size_t)(p - h->parts), scrub, &err);
	pthread_mutex_lock(&h->lock);
	if (r >= 0) {
		p->state = r ? HOST_PART_ZERO : HOST_PART_READY;
	} else if (!h->stopped) {
		h->err = err;
		h->stopped = true;
	}
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

/* ---- what is wanted ---- */

/* Under the lock: replaces a segment without pages by one that has some. Neither has been used yet. */
static void exchange_blank(struct segments *h, struct host_part *p)
{
	struct segment *mine = p->segment;

	if (!segment_is_blank(mine) || p->state == HOST_PART_SKIPPED)
		return;
	for (size_t k = 0; k < h->n_segments; k++) {
		struct host_part *other = &h->parts[k];

		if (other == p || is_wanted(other) || !segment_is_used(other->segment) ||
		    other->segment->node != mine->node)
			continue;
		p->segment = other->segment;
		other->segment = mine;
		return;
	}
}

/* Under the lock: for a part whose zeros were skipped before it was wanted. A blank segment reads as zeros, so tries
 * to exchange it for one. Returns whether the zeros have to be written. */
static bool owes_zeros(struct host_part *p)
{
	return segment_is_used(p->segment) && segment_exchange(&p->segment) < 0;
}

/* Under the lock: takes one in memory for a part of a sparse copy. */
static int take_one(struct segments *h, struct host_part *p, struct brumate_error *err)
{
	struct pool *pool = gpus_pool(h->gpus);
	struct segment *s = NULL;

	if (!pool_has_room(pool, 1, h->segment_bytes))
		return brumate_fail(err, ENOSPC, "host memory is too short for it");
	int r = pool_take(pool, &s, 1, h->segment_bytes, &p->segment->node, err);
	if (r < 0)
		return r;
	pool_put(p->segment);
	p->segment = s;
	return s->backing == SEGMENT_DISK
		       ? brumate_fail(err, ENOSPC, "host memory is too short for it")
		       : 0;
}

/* Under the lock. */
static void want_part(struct segments *h, struct host_part *p)
{
	if (is_wanted(p) || h->stopped)
		return;
	if (h->sparse && take_one(h, p, &h->err) < 0) {
		h->stopped = true;
		pthread_cond_broadcast(&h->changed);
		return;
	}
	exchange_blank(h, p);
	p->state = p->state == HOST_PART_SKIPPED && owes_zeros(p) ? HOST_PART_SCRUBBING
								  : HOST_PART_PREPARING;
	p->work.run = run_part;
	work_queue_add(h->workers, &p->work);
}

size_t segments_count_empty(const struct segments *h, const bool *needed)
{
	struct stat st;
	size_t n = 0;

	for (size_t i = 0; i < h->n_segments; i++)
		n += (!needed || needed[i]) && fstat(h->parts[i].segment->fd, &st) == 0 &&
		     !st.st_blocks;
	return n;
}

void segments_want(struct segments *h, size_t first, size_t end)
{
	pthread_mutex_lock(&h->lock);
	for (size_t i = first; i < end; i++)
		want_part(h, &h->parts[i]);
	pthread_mutex_unlock(&h->lock);
}

bool segments_skips_zeros(struct segments *h, size_t i, bool now)
{
	struct host_part *p = &h->parts[i];

	pthread_mutex_lock(&h->lock);
	bool skips = !is_wanted(p) && p->segment->owner == SEGMENT_TAKEN &&
		     p->segment->backing != SEGMENT_DISK;
	if (skips && now)
		p->state = HOST_PART_SKIPPED;
	pthread_mutex_unlock(&h->lock);
	return skips;
}

/* Under the lock. */
static int fail_stopped(struct segments *h, struct brumate_error *err)
{
	if (!h->err.code)
		return brumate_fail(err, ECANCELED, "cancelled");
	if (err)
		*err = h->err;
	return -h->err.code;
}

/* Under the lock. */
static bool is_ready(const struct host_part *p)
{
	return p->state == HOST_PART_ZERO || p->state == HOST_PART_READY;
}

int segments_get(struct segments *h, size_t i, bool block, struct segment **ret, bool *ret_zero,
		 struct brumate_error *err)
{
	struct host_part *p = &h->parts[i];
	int r = 0;

	pthread_mutex_lock(&h->lock);
	if (!h->stopped)
		want_part(h, p);
	while (block && !h->stopped && !is_ready(p))
		pthread_cond_wait(&h->changed, &h->lock);
	if (h->stopped)
		r = fail_stopped(h, err);
	else if (!is_ready(p))
		r = 1;
	else
		*ret = p->segment;
	if (r == 0 && ret_zero)
		*ret_zero = p->state == HOST_PART_ZERO;
	pthread_mutex_unlock(&h->lock);
	return r;
}

void segments_stop(struct segments *h)
{
	pthread_mutex_lock(&h->lock);
	h->stopped = true;
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

/* ---- its descriptors ---- */

size_t segments_fds(const struct segments *h)
{
	return h->n_segments + h->spilled;
}

static int lease_key(const struct segments *h, struct brumate_error *err)
{
	int fd = fcntl(h->key_fd, F_DUPFD_CLOEXEC, 0);

	return fd < 0 ? brumate_fail(err, errno, "host copy: key: %m") : fd;
}

/* Makes parts that were never wanted read as zeros, before holders see them. */
static void settle_parts(struct segments *h, size_t first, size_t end)
{
	pthread_mutex_lock(&h->lock);
	for (size_t i = first; i < end && i < h->n_segments; i++) {
		struct host_part *p = &h->parts[i];

		if (is_wanted(p))
			continue;
		p->state = HOST_PART_SETTLED;
		if (owes_zeros(p))
			memset(p->segment->at, 0, h->segment_bytes);
	}
	pthread_mutex_unlock(&h->lock);
}

int segments_lease(struct segments *h, size_t first, size_t end, int *ret_fds,
		   struct brumate_error *err)
{
	settle_parts(h, first, end);
	for (size_t i = first; i < end; i++) {
		int fd = i < h->n_segments ? segment_lease(h->parts[i].segment, false, err)
					   : lease_key(h, err);

		if (fd < 0) {
			while (i-- > first)
				close(ret_fds[i - first]);
			return fd;
		}
		ret_fds[i - first] = fd;
	}
	return 0;
}

/* ---- beginning and end ---- */

static int segments_alloc(struct segments **ret, struct gpus *gpus, uint64_t total_bytes,
			  uint64_t segment_bytes, struct brumate_error *err)
{
	struct segments *h = calloc(1, sizeof(*h));
	size_t n = (size_t)((total_bytes - 1) / segment_bytes + 1);

	if (!h)
		return brumate_fail(err, ENOMEM, "host copy: %m");
	h->gpus = gpus;
	h->total_bytes = total_bytes;
	h->segment_bytes = segment_bytes;
	h->n_segments = n;
	h->key_fd = -1;
	h->parts = calloc(n, sizeof(*h->parts));
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->changed, NULL);
	if (!h->parts) {
		segments_free(h);
		return brumate_fail(err, ENOMEM, "host copy: %m");
	}
	for (size_t i = 0; i < n; i++)
		h->parts[i].host = h;
	*ret = h;
	return 0;
}

static int start_workers(struct segments *h, struct brumate_error *err)
{
	for (size_t i = 0; i < h->n_segments; i++)
		h->needs_ring |= !segment_is_worth_pinning(h->parts[i].segment);
	return work_queue_new(&h->workers, workers_cores(THREADS_MAX), err);
}

static int take_segments(struct segments *h, const int *nodes, struct brumate_error *err)
{
	auto_free struct segment **segments = calloc(h->n_segments, sizeof(*segments));

	if (!segments)
		return brumate_fail(err, ENOMEM, "host copy: %m");
	int r = pool_take(gpus_pool(h->gpus), segments, h->n_segments, h->segment_bytes, nodes,
			  err);
	for (size_t i = 0; r == 0 && i < h->n_segments; i++) {
		h->parts[i].segment = segments[i];
		h->spilled |= segments[i]->backing == SEGMENT_DISK;
	}
	if (r == 0 && h->spilled && (r = spill_key_new(&h->key, &h->key_fd)) < 0)
		brumate_fail(err, -r, "host copy: key: %m");
	return r;
}

/* The end of making one, which is freed if @r, or its start, is an error. */
static int hand_over(struct segments **ret, struct segments *h, int r, struct brumate_error *err)
{
	if (r == 0)
		r = start_workers(h, err);
	if (r < 0)
		segments_free(h);
	else
		*ret = h;
	return r;
}

int segments_new(struct segments **ret, struct gpus *gpus, uint64_t total_bytes, const int *nodes,
		 struct brumate_error *err)
{
	struct segments *h;
	int r = segments_alloc(&h, gpus, total_bytes, pool_segment_bytes(total_bytes), err);

	if (r < 0)
		return r;
	r = take_segments(h, nodes, err);
	return hand_over(ret, h, r, err);
}

int segments_new_sparse(struct segments **ret, struct gpus *gpus, uint64_t total_bytes,
			const int *nodes, struct brumate_error *err)
{
	struct segments *h;
	int r = segments_alloc(&h, gpus, total_bytes, pool_segment_bytes(total_bytes), err);

	if (r < 0)
		return r;
	auto_free struct segment **segments = calloc(h->n_segments, sizeof(*segments));
	r = segments ? pool_take_blank(gpus_pool(gpus), segments, h->n_segments, h->segment_bytes,
				       nodes, err)
		     : brumate_fail(err, ENOMEM, "host copy: %m");
	for (size_t i = 0; r == 0 && i < h->n_segments; i++)
		h->parts[i].segment = segments[i];
	h->sparse = true;
	return hand_over(ret, h, r, err);
}

/* Under the lock: the first of @taken for those that are needed, in their order. */
static void place_segments(struct segments *h, const bool *needed, struct segment **taken)
{
	h->sparse = h->needs_ring = false;
	for (size_t i = 0; i < h->n_segments; i++) {
		if (!needed[i])
			continue;
		pool_put(h->parts[i].segment);
		h->parts[i].segment = *taken++;
		h->spilled |= h->parts[i].segment->backing == SEGMENT_DISK;
		h->needs_ring |= !segment_is_worth_pinning(h->parts[i].segment);
	}
}

int segments_settle(struct segments *h, const bool *needed, struct brumate_error *err)
{
	auto_free struct segment **taken = calloc(h->n_segments, sizeof(*taken));
	auto_free int *nodes = calloc(h->n_segments, sizeof(*nodes));
	size_t n = 0;
	int r = 0;

	if (!taken || !nodes)
		return brumate_fail(err, ENOMEM, "host copy: %m");
	for (size_t i = 0; i < h->n_segments; i++)
		if (needed[i])
			nodes[n++] = h->parts[i].segment->node;
	if (n)
		r = pool_take(gpus_pool(h->gpus), taken, n, h->segment_bytes, nodes, err);
	if (r < 0)
		return r;
	pthread_mutex_lock(&h->lock);
	place_segments(h, needed, taken);
	if (h->spilled && (r = spill_key_new(&h->key, &h->key_fd)) < 0)
		brumate_fail(err, -r, "host copy: key: %m");
	pthread_mutex_unlock(&h->lock);
	return r;
}

static int adopt_segments(struct segments *h, const int *fds, size_t n, struct brumate_error *err)
{
	int r = 0;

	h->spilled = n == h->n_segments + 1;
	if (n != h->n_segments + h->spilled)
		return brumate_fail(err, EBADMSG, "host copy: %zu segments, expected %zu", n,
				    h->n_segments);
	if (h->spilled && spill_key_read(&h->key, fds[h->n_segments]) < 0)
		return brumate_fail(err, EBADF, "host copy: a descriptor is not a key");
	for (size_t i = 0; i < h->n_segments && r == 0; i++)
		r = pool_adopt(gpus_pool(h->gpus), &h->parts[i].segment, fds[i], h->segment_bytes,
			       h->spilled, err);
	return r;
}

int segments_adopt(struct segments **ret, struct gpus *gpus, uint64_t total_bytes,
		   uint64_t segment_bytes, const int *fds, size_t n, struct brumate_error *err)
{
	struct segments *h;
	int r = segments_alloc(&h, gpus, total_bytes, segment_bytes, err);

	if (r < 0)
		return r;
	r = adopt_segments(h, fds, n, err);
	return hand_over(ret, h, r, err);
}

void segments_free(struct segments *h)
{
	if (!h)
		return;
	segments_stop(h);
	work_queue_free(h->workers);
	for (size_t i = 0; h->parts && i < h->n_segments; i++)
		pool_put(h->parts[i].segment);
	seal_disk_key_fini(&h->key);
	cleanup_close(&h->key_fd);
	pthread_mutex_destroy(&h->lock);
	pthread_cond_destroy(&h->changed);
	free(h->parts);
	free(h);
}
