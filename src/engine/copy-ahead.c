// SPDX-License-Identifier: MIT
/* Device memory on its way in, before all of it is there: made, and piece by piece filled. */
#include "engine/copy-private.h"

#include <fcntl.h>
#include <stdlib.h>

#include "base/clock.h"

void copy_drop_early(struct copy *c)
{
	for (size_t i = 0; c->early && i < c->n; i++)
		cleanup_close(&c->early[i]);
	free(take_ptr(&c->early));
	c->n_filled = 0;
}

/* Under the lock. */
static void take_early(struct copy *c, const int *fds)
{
	c->early = calloc(c->n, sizeof(int));
	for (size_t i = 0; c->early && i < c->n; i++)
		c->early[i] = -1;
	for (size_t i = 0; c->early && i < c->n; i++)
		if ((c->early[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0)) < 0)
			copy_drop_early(c); /* then it is all used at the end */
	if (!c->early)
		c->ahead = c->ahead == AHEAD_FREE ? AHEAD_NO_MORE : c->ahead;
}

void copy_note_filled(void *arg, const int *fds, size_t n_filled)
{
	struct copy *c = arg;

	pthread_mutex_lock(&c->lock);
	c->made = true;
	if (!c->early && c->ahead != AHEAD_NO_MORE)
		take_early(c, fds);
	c->n_filled = c->early ? n_filled : 0;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

void copy_void_early(struct copy *c)
{
	pthread_mutex_lock(&c->lock);
	c->stale = true;
	pthread_cond_broadcast(&c->changed);
	while (c->ahead == AHEAD_USED)
		pthread_cond_wait(&c->changed, &c->lock);
	c->ahead = AHEAD_NO_MORE;
	copy_drop_early(c);
	pthread_mutex_unlock(&c->lock);
}

bool copy_begin_ahead(struct op *op)
{
	struct copy *c = op->copy;

	if (!c || !c->in)
		return false;
	pthread_mutex_lock(&c->lock);
	bool may = c->ahead == AHEAD_FREE;
	if (may)
		c->ahead = AHEAD_USED;
	pthread_mutex_unlock(&c->lock);
	if (may)
		progress_measure(&op->progress, copy_measure, op, c->total_bytes);
	return may;
}

size_t copy_wait_filled(struct op *op, size_t n, const int **ret_fds)
{
	struct copy *c = op->copy;

	pthread_mutex_lock(&c->lock);
	while (!c->ended && !c->stale && c->n_filled <= n)
		pthread_cond_wait(&c->changed, &c->lock);
	size_t filled = c->ended || c->stale ? 0 : c->n_filled;
	*ret_fds = c->early;
	pthread_mutex_unlock(&c->lock);
	return filled;
}

bool copy_is_stale(struct op *op)
{
	pthread_mutex_lock(&op->copy->lock);
	bool stale = op->copy->stale;
	pthread_mutex_unlock(&op->copy->lock);
	return stale;
}

void copy_end_ahead(struct op *op)
{
	struct copy *c = op->copy;

	pthread_mutex_lock(&c->lock);
	c->ahead = AHEAD_NO_MORE;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
}

/* What the driver takes for its control state, and how fast data comes: both at their best. */
enum { CONTROL_MS = 150, LINK_BYTES_PER_MS = 55000000, HEAD_START_MS_MAX = 400 };

int step_make(struct op *op, struct brumate_error *err)
{
	struct copy *c = op->copy;
	uint64_t data_ms = c ? c->total_bytes / LINK_BYTES_PER_MS : 0;

	if (!c || data_ms <= CONTROL_MS)
		return 1;
	uint64_t spare_ms = data_ms - CONTROL_MS;
	struct timespec until = deadline_timespec(
		deadline_in_ms(spare_ms < HEAD_START_MS_MAX ? spare_ms : HEAD_START_MS_MAX));
	int r = 0;
	pthread_mutex_lock(&c->lock);
	while (r == 0 && !c->made && !c->ended && !c->stale)
		r = pthread_cond_timedwait(&c->changed, &c->lock, &until);
	pthread_mutex_unlock(&c->lock);
	(void)err;
	return 0;
}
