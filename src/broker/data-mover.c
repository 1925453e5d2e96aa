// SPDX-License-Identifier: MIT
/* Pieces of device memory on their way: what they are, who works on them, and how it ends. */
#include "broker/data.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void wake(struct mover *m)
{
	uint64_t one = 1;

	if (write(m->wake_fd, &one, sizeof(one)) < 0)
		return; /* full: it is awake already */
}

void mover_fail(struct mover *m, const struct brumate_error *err)
{
	pthread_mutex_lock(&m->lock);
	if (!m->stopped)
		m->err = *err;
	m->stopped = true;
	if (m->host)
		host_copy_stop(m->host);
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	wake(m);
}

static int add_pieces(struct mover *m, const struct transfer_piece *pieces, size_t n,
		      struct brumate_error *err)
{
	for (size_t i = 0; i < n; i++) {
		struct piece *p = &m->pieces[i];

		*p = (struct piece){ .offset = m->total_bytes,
				     .len_bytes = pieces[i].len_bytes,
				     .fd = -1 };
		int r = lane_find(m, pieces[i].gpu, &p->lane, err);
		if (r == 0)
			r = lane_add_piece(m, p->lane, i);
		if (r < 0)
			return brumate_fail(err, -r, "piece %zu: %m", i);
		m->n_pieces++;
		m->total_bytes = transfer_next(p->offset, p->len_bytes);
		if (m->total_bytes > TRANSFER_BYTES_MAX)
			return brumate_fail(err, EFBIG, "pieces: too much memory: %m");
	}
	return 0;
}

/* Memory near to the GPU whose piece begins a segment, or reaches into it. */
static int *choose_nodes(const struct mover *m, uint64_t segment_bytes)
{
	size_t n = (size_t)((m->total_bytes - 1) / segment_bytes + 1), piece = 0;
	int *nodes = calloc(n, sizeof(*nodes)), of_lane[DEV_GPUS_MAX];

	for (size_t i = 0; nodes && i < m->n_lanes; i++)
		of_lane[i] = m->ops->node(lane_uuid(m, i));
	for (size_t i = 0; nodes && i < n; i++) {
		while (transfer_next(m->pieces[piece].offset, m->pieces[piece].len_bytes) <=
		       i * segment_bytes)
			piece++;
		nodes[i] = of_lane[m->pieces[piece].lane];
	}
	return nodes;
}

static int take_host_memory(struct mover *m, struct brumate_error *err)
{
	auto_free int *nodes = choose_nodes(m, pool_segment_bytes(m->total_bytes));

	struct host_copy *host;

	if (!nodes)
		return brumate_fail(err, ENOMEM, "pieces: %m");
	int r = host_copy_new(&host, m->total_bytes, nodes, HOST_FOR_COPY, -1, err);
	if (r < 0)
		return r;
	if (!(m->flags & TRANSFER_WITH_DIGESTS))
		host_copy_want(host, 0, host->n_segments);
	pthread_mutex_lock(&m->lock); /* the lanes run already, and may have failed */
	m->host = host;
	if (m->stopped)
		host_copy_stop(host);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

int mover_new(struct mover **ret, const struct transfer_piece *pieces, size_t n, uint32_t flags,
	      int wake_fd, struct brumate_error *err)
{
	struct mover *m = calloc(1, sizeof(*m));

	if (!m)
		return brumate_fail(err, ENOMEM, "pieces: %m");
	pthread_mutex_init(&m->lock, NULL);
	pthread_cond_init(&m->changed, NULL);
	m->ops = gpus_ops();
	m->flags = flags;
	m->to_host = flags & TRANSFER_TO_HOST;
	m->wake_fd = wake_fd;
	m->pieces = calloc(n, sizeof(*m->pieces));
	int r = m->pieces ? add_pieces(m, pieces, n, err) : brumate_fail(err, ENOMEM, "pieces: %m");
	if (r == 0)
		r = lanes_start(m, err);
	if (r == 0 && m->to_host && !(flags & TRANSFER_BASE))
		r = take_host_memory(m, err);
	if (r < 0)
		mover_free(m);
	else
		*ret = m;
	return r;
}

int mover_start(struct mover *m, struct host_copy *host, struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&m->lock);
	if (host)
		m->host = host;
	if (!m->to_host && chunks_are_known(m))
		m->host->needs_ring = chunks_want(m, 0, m->total_bytes);
	else if (!m->to_host)
		host_copy_want(m->host, 0, m->host->n_segments);
	if (m->host->needs_ring || m->flags & TRANSFER_WITH_DIGESTS)
		r = crew_new(&m->crew, 8, m->host->spilled, err);
	m->started = r == 0;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	return r;
}

int mover_give(struct mover *m, const int *fds, size_t n)
{
	int r = 0;

	pthread_mutex_lock(&m->lock);
	if (n > m->n_pieces - m->n_given)
		r = -EBADMSG;
	for (size_t i = 0; i < n; i++)
		if (r < 0)
			close(fds[i]);
		else
			m->pieces[m->n_given++].fd = fds[i];
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	return r;
}

/* Under the lock. The last segment is whole with the last piece. */
static size_t count_whole(const struct mover *m)
{
	const struct piece *p = &m->pieces[m->n_filled];

	if (m->n_filled == m->n_pieces)
		return m->host->n_segments;
	return (size_t)((p->offset + lane_filled_bytes(m, p)) / m->host->segment_bytes);
}

void mover_note(struct mover *m)
{
	size_t filled = m->n_filled, whole = m->n_whole;

	while (m->n_filled < m->n_pieces &&
	       lane_filled_bytes(m, &m->pieces[m->n_filled]) == m->pieces[m->n_filled].len_bytes)
		m->n_filled++;
	if (m->to_host)
		m->n_whole = count_whole(m);
	if (m->to_host ? m->n_whole > whole : m->n_filled > filled)
		wake(m);
}

size_t mover_whole(struct mover *m)
{
	pthread_mutex_lock(&m->lock);
	size_t n = m->n_whole;
	pthread_mutex_unlock(&m->lock);
	return n;
}

bool mover_has_made(struct mover *m, size_t *ret_filled)
{
	pthread_mutex_lock(&m->lock);
	bool all = m->n_made == m->n_pieces;
	*ret_filled = m->n_filled;
	pthread_mutex_unlock(&m->lock);
	return all;
}

int mover_state(struct mover *m, uint64_t *ret_done_bytes, struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&m->lock);
	if (m->stopped) {
		*err = m->err;
		r = -m->err.code;
	} else if (m->started && !m->n_running) {
		r = 1;
	}
	*ret_done_bytes = m->done_bytes;
	pthread_mutex_unlock(&m->lock);
	return r;
}

void mover_finish(struct mover *m)
{
	pthread_mutex_lock(&m->lock);
	if (!m->started || m->n_running) {
		m->stopped = true;
		if (m->host)
			host_copy_stop(m->host);
	}
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	lanes_finish(m);
	crew_free(take_ptr(&m->crew));
}

void mover_free(struct mover *m)
{
	if (!m)
		return;
	mover_finish(m);
	host_copy_free(m->host);
	chunks_free(m->chunks);
	for (size_t i = 0; i < m->n_pieces; i++)
		cleanup_close(&m->pieces[i].fd);
	pthread_mutex_destroy(&m->lock);
	pthread_cond_destroy(&m->changed);
	free(m->pieces);
	free(m);
}
