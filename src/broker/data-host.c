// SPDX-License-Identifier: MIT
/*
 * A host copy: segments that become ready, touched and pinned, by a crew of their own, in the order in
 * which they are wanted, while copies already run into those that are. What nobody wants, being all
 * zero, never gets a page: it reads as zeros. It is the one rule that nothing else is ever read from a
 * host copy than what was saved.
 */
#include "broker/data.h"
#include "base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS_MAX = 8 };

struct host_job {
	struct crew_job job;
	struct host_copy *host;
	size_t i;
};

static void wake(struct host_copy *h)
{
	uint64_t one = 1;

	if (h->wake_fd >= 0 && write(h->wake_fd, &one, sizeof(one)) < 0)
		return; /* full: it is awake already */
}

/* What a holder may see that this copy does not overwrite. */
static void zero_rest(const struct host_copy *h, struct segment *s, size_t i)
{
	uint64_t start = i * h->segment_bytes, used = h->total_bytes - start;

	if (!s->dirty || h->as_is)
		return;
	if (h->held || h->scrub[i])
		used = 0;
	if (used < s->bytes)
		memset(s->at + used, 0, s->bytes - used);
}

static int prepare(struct host_copy *h, size_t i, struct brumate_error *err)
{
	struct segment *s = h->segments[i];
	int r = fault_point("data.alloc");

	if (r < 0)
		return brumate_fail(err, -r, "host memory: %m");
	if (s->state == SEGMENT_TAKEN && h->held && segment_is_blank(s))
		return 0; /* whoever fills it knows which pages it needs */
	if (s->state == SEGMENT_TAKEN) {
		r = segment_touch(s, err);
		if (r < 0)
			return r;
		zero_rest(h, s, i);
		h->clean[i] = !s->spilled && (!s->dirty || h->held || h->scrub[i]);
		s->dirty = true;
	}
	struct dev_memory *m = !s->pinned && segment_is_worth_pinning(s) ? gpus_any() : NULL;
	if (m)
		segment_pin(s, gpus_ops(), m);
	return 0;
}

static bool is_stopped(struct host_copy *h)
{
	pthread_mutex_lock(&h->lock);
	bool stopped = h->stopped;
	pthread_mutex_unlock(&h->lock);
	return stopped;
}

static void run_job(struct crew_job *job)
{
	struct host_job *j = (struct host_job *)job;
	struct host_copy *h = j->host;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (is_stopped(h))
		return;
	int r = prepare(h, j->i, &err);
	pthread_mutex_lock(&h->lock);
	if (r == 0) {
		h->ready[j->i] = true;
		h->n_ready++;
	} else if (!h->stopped) {
		h->err = err;
		h->stopped = true;
	}
	bool over = h->stopped || h->n_ready == h->n_segments;
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
	if (over)
		wake(h);
}

static int host_copy_alloc(struct host_copy **ret, uint64_t total_bytes, uint64_t segment_bytes,
			   int wake_fd, struct brumate_error *err)
{
	struct host_copy *h = calloc(1, sizeof(*h));
	size_t n = (size_t)((total_bytes - 1) / segment_bytes + 1);

	if (!h)
		return brumate_fail(err, ENOMEM, "host copy: %m");
	h->total_bytes = total_bytes;
	h->segment_bytes = segment_bytes;
	h->n_segments = n;
	h->wake_fd = wake_fd;
	h->key_fd = -1;
	h->segments = calloc(n, sizeof(struct segment *));
	h->ready = calloc(n, sizeof(*h->ready));
	h->clean = calloc(n, sizeof(*h->clean));
	h->wanted = calloc(n, sizeof(*h->wanted));
	h->skipped = calloc(n, sizeof(*h->skipped));
	h->scrub = calloc(n, sizeof(*h->scrub));
	h->jobs = calloc(n, sizeof(*h->jobs));
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->changed, NULL);
	if (!h->segments || !h->ready || !h->clean || !h->wanted || !h->skipped || !h->scrub ||
	    !h->jobs) {
		host_copy_free(h);
		return brumate_fail(err, ENOMEM, "host copy: %m");
	}
	*ret = h;
	return 0;
}

static int start(struct host_copy *h, struct brumate_error *err)
{
	int r = crew_new(&h->crew, THREADS_MAX, false, err);

	for (size_t i = 0; i < h->n_segments; i++)
		h->needs_ring |= !segment_is_worth_pinning(h->segments[i]);
	return r;
}

/* Under the lock: a segment whose pages are there already, in place of one without any. Nobody has looked
 * at either. */
static void exchange(struct host_copy *h, size_t i)
{
	struct segment *mine = h->segments[i];

	if (!segment_is_blank(mine) || h->skipped[i])
		return;
	for (size_t k = 0; k < h->n_segments; k++) {
		struct segment *s = h->segments[k];

		if (h->wanted[k] || s->spilled || !s->touched || s->node != mine->node)
			continue;
		h->segments[i] = s;
		h->segments[k] = mine;
		return;
	}
}

/* Under the lock: nobody wanted its zeros to be written, so they have to be there. */
static void make_zeros_true(struct host_copy *h, size_t i)
{
	struct segment *s = h->segments[i];

	if (s->state == SEGMENT_TAKEN && s->dirty && pool_take_blank(&h->segments[i]) < 0)
		h->scrub[i] = true;
}

/* Under the lock. */
static void want(struct host_copy *h, size_t i)
{
	if (h->wanted[i])
		return;
	h->wanted[i] = true;
	exchange(h, i);
	if (h->skipped[i])
		make_zeros_true(h, i);
	h->jobs[i] = (struct host_job){ { .run = run_job }, h, i };
	crew_add(h->crew, &h->jobs[i].job);
}

void host_copy_want(struct host_copy *h, size_t first, size_t end)
{
	pthread_mutex_lock(&h->lock);
	for (size_t i = first; i < end; i++)
		want(h, i);
	pthread_mutex_unlock(&h->lock);
}

bool host_copy_skips_zeros(struct host_copy *h, size_t i, bool now)
{
	pthread_mutex_lock(&h->lock);
	const struct segment *s = h->segments[i];
	bool skips = !h->wanted[i] && s->state == SEGMENT_TAKEN && !s->spilled;
	h->skipped[i] |= skips && now;
	pthread_mutex_unlock(&h->lock);
	return skips;
}

/* Where some of it is on a disk. */
static int make_key(struct host_copy *h, struct brumate_error *err)
{
	for (size_t i = 0; i < h->n_segments; i++)
		h->spilled |= h->segments[i]->spilled;
	int r = h->spilled ? spill_key_new(&h->key, &h->key_fd) : 0;

	return r < 0 ? brumate_fail(err, -r, "host copy: key: %m") : 0;
}

static int take_key(struct host_copy *h, int fd, struct brumate_error *err)
{
	int r = spill_key_read(&h->key, fd);

	return r < 0 ? brumate_fail(err, -r, "host copy: a descriptor is no key") : 0;
}

int host_copy_new(struct host_copy **ret, uint64_t total_bytes, const int *nodes, enum host_use use,
		  int wake_fd, struct brumate_error *err)
{
	struct host_copy *h;
	int r = host_copy_alloc(&h, total_bytes, pool_segment_bytes(total_bytes), wake_fd, err);

	if (r < 0)
		return r;
	h->held = use != HOST_FOR_COPY;
	h->as_is = use == HOST_AS_IS;
	r = pool_take(h->segments, h->n_segments, h->segment_bytes, nodes, err);
	if (r < 0)
		memset(h->segments, 0, h->n_segments * sizeof(struct segment *));
	if (r == 0)
		r = make_key(h, err);
	if (r == 0)
		r = start(h, err);
	if (r == 0 && h->held)
		host_copy_want(h, 0, h->n_segments);
	if (r < 0)
		host_copy_free(h);
	else
		*ret = h;
	return r;
}

int host_copy_adopt(struct host_copy **ret, uint64_t total_bytes, uint64_t segment_bytes,
		    const int *fds, size_t n, struct brumate_error *err)
{
	struct host_copy *h;
	int r = host_copy_alloc(&h, total_bytes, segment_bytes, -1, err);

	if (r < 0)
		return r;
	h->spilled = n == h->n_segments + 1;
	if (n != h->n_segments + h->spilled)
		r = brumate_fail(err, EBADMSG, "host copy: %zu segments, want %zu", n,
				 h->n_segments);
	if (r == 0 && h->spilled)
		r = take_key(h, fds[h->n_segments], err);
	for (size_t i = 0; i < h->n_segments && r == 0; i++)
		r = pool_adopt(&h->segments[i], fds[i], segment_bytes, h->spilled, err);
	if (r == 0)
		r = start(h, err);
	if (r < 0)
		host_copy_free(h);
	else
		*ret = h;
	return r;
}

/* Under the lock. */
static int fail_stopped(struct host_copy *h, struct brumate_error *err)
{
	if (!h->err.code)
		return brumate_fail(err, ECANCELED, "cancelled");
	if (err)
		*err = h->err;
	return -h->err.code;
}

int host_copy_get(struct host_copy *h, size_t i, bool block, struct segment **ret,
		  struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&h->lock);
	if (!h->stopped)
		want(h, i);
	while (block && !h->stopped && !h->ready[i])
		pthread_cond_wait(&h->changed, &h->lock);
	if (h->stopped)
		r = fail_stopped(h, err);
	else if (!h->ready[i])
		r = 1;
	else
		*ret = h->segments[i];
	pthread_mutex_unlock(&h->lock);
	return r;
}

int host_copy_state(struct host_copy *h, struct brumate_error *err)
{
	pthread_mutex_lock(&h->lock);
	int r = h->stopped ? fail_stopped(h, err) : h->n_ready == h->n_segments;
	pthread_mutex_unlock(&h->lock);
	return r;
}

size_t host_copy_fds(const struct host_copy *h)
{
	return h->n_segments + h->spilled;
}

static int lease_key(const struct host_copy *h, struct brumate_error *err)
{
	int fd = fcntl(h->key_fd, F_DUPFD_CLOEXEC, 0);

	return fd < 0 ? brumate_fail(err, errno, "host copy: key: %m") : fd;
}

/* What nobody wanted, before others see it. */
static void settle(struct host_copy *h, size_t first, size_t end)
{
	pthread_mutex_lock(&h->lock);
	for (size_t i = first; i < end && i < h->n_segments; i++) {
		if (h->wanted[i])
			continue;
		h->wanted[i] = true;
		make_zeros_true(h, i);
		if (h->scrub[i])
			memset(h->segments[i]->at, 0, h->segment_bytes);
	}
	pthread_mutex_unlock(&h->lock);
}

int host_copy_lease(struct host_copy *h, size_t first, size_t end, int *ret_fds,
		    struct brumate_error *err)
{
	settle(h, first, end);
	for (size_t i = first; i < end; i++) {
		int fd = i < h->n_segments ? segment_lease(h->segments[i], h->held, err)
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

void host_copy_stop(struct host_copy *h)
{
	pthread_mutex_lock(&h->lock);
	h->stopped = true;
	pthread_cond_broadcast(&h->changed);
	pthread_mutex_unlock(&h->lock);
}

void host_copy_free(struct host_copy *h)
{
	if (!h)
		return;
	host_copy_stop(h);
	crew_free(h->crew);
	for (size_t i = 0; h->segments && i < h->n_segments; i++)
		pool_put(h->segments[i]);
	seal_disk_key_fini(&h->key);
	cleanup_close(&h->key_fd);
	pthread_mutex_destroy(&h->lock);
	pthread_cond_destroy(&h->changed);
	free(h->segments);
	free(h->ready);
	free(h->clean);
	free(h->wanted);
	free(h->skipped);
	free(h->scrub);
	free(h->jobs);
	free(h);
}
