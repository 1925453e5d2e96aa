// SPDX-License-Identifier: MIT
/* The progress of a lane's threads, and what they may work on. See lane.h. */
#include "broker/lane.h"

#include <errno.h>
#include <sys/eventfd.h>

void lane_advance(const struct lane *l, struct position *p, uint64_t bytes)
{
	p->done += bytes;
	p->bytes += bytes;
	while (p->piece < l->n_pieces && p->bytes >= lane_piece(l, p->piece)->len_bytes)
		p->bytes -= lane_piece(l, p->piece++)->len_bytes;
}

/* Under the transfer's lock: how many bytes of @p are copied, from its start. */
static uint64_t filled_bytes(const struct transfer *t, const struct lane_piece *p)
{
	uint64_t copied = t->lanes[p->lane].copied_bytes, start = p->lane_end - p->len_bytes;

	if (copied >= p->lane_end)
		return p->len_bytes;
	return copied > start ? copied - start : 0;
}

/* Under the lock: how many segments are complete. The last segment is complete with the last piece. */
static size_t count_whole(const struct transfer *t)
{
	const struct lane_piece *p = &t->pieces[t->n_filled];

	if (t->n_filled == t->n_pieces)
		return t->host->n_segments;
	return (size_t)((p->offset + filled_bytes(t, p)) / t->host->segment_bytes);
}

void lane_note_copied(struct transfer *t)
{
	size_t filled = t->n_filled, whole = t->n_whole;

	while (t->n_filled < t->n_pieces &&
	       filled_bytes(t, &t->pieces[t->n_filled]) == t->pieces[t->n_filled].len_bytes)
		t->n_filled++;
	if (t->to_host)
		t->n_whole = count_whole(t);
	if (t->to_host ? t->n_whole > whole : t->n_filled > filled)
		eventfd_write(t->wake_fd, 1);
}

int lane_wait_turn(struct lane *l, size_t n_given)
{
	struct transfer *t = l->transfer;

	pthread_mutex_lock(&t->lock);
	while (t->state == TRANSFER_WAITING ||
	       (t->state == TRANSFER_RUNNING && (!l->opened || t->n_given < n_given)))
		pthread_cond_wait(&t->changed, &t->lock);
	int r = t->state == TRANSFER_STOPPED ? -ECANCELED : 0;
	pthread_mutex_unlock(&t->lock);
	return r;
}

/* The number of bytes without a gap from @p on, up to @limit. */
static uint64_t run_bytes(const struct lane *l, const struct position *p, uint64_t limit,
			  uint64_t most)
{
	uint64_t bytes = 0;

	for (size_t i = p->piece; i < l->n_pieces && bytes < most; i++) {
		bytes += lane_piece(l, i)->len_bytes - (i == p->piece ? p->bytes : 0);
		if (!lane_is_followed(l, i))
			break;
	}
	bytes = bytes < most ? bytes : most;
	return bytes < limit - p->done ? bytes : limit - p->done;
}

int lane_find_run(struct lane *l, const struct position *p, const uint64_t *limit, bool block,
		  uint64_t most, uint64_t *ret_bytes)
{
	struct transfer *t = l->transfer;
	int r = LANE_FOUND;

	if (p->piece == l->n_pieces)
		return LANE_DONE;
	pthread_mutex_lock(&t->lock);
	while (block && t->state != TRANSFER_STOPPED && *limit == p->done)
		pthread_cond_wait(&t->changed, &t->lock);
	if (t->state == TRANSFER_STOPPED)
		r = -ECANCELED;
	else if (*limit == p->done)
		r = LANE_NOT_YET;
	else
		*ret_bytes = run_bytes(l, p, *limit, most);
	pthread_mutex_unlock(&t->lock);
	return r;
}
