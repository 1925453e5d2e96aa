// SPDX-License-Identifier: MIT
/*
 * The lane of one GPU: a thread that maps pieces ahead (data-map.c), and one that copies what is mapped, in steps
 * that lie in one segment. Pieces are mapped at the same distances as they have in the host copy, so
 * that a step spans many small ones. A step whose segment is not pinned goes through a slot of a
 * pinned ring, and from there by a crew's memcpy(3); a window of steps keeps both busy.
 */
#include "broker/data-lane.h"
#include "base/array.h"
#include "base/fault.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const uint8_t *lane_uuid(const struct mover *m, size_t lane)
{
	return m->lanes[lane].uuid;
}

int lane_find(struct mover *m, const uint8_t *uuid, size_t *ret, struct brumate_error *err)
{
	if (!m->lanes)
		m->lanes = calloc(DEV_GPUS_MAX, sizeof(*m->lanes));
	if (!m->lanes)
		return -ENOMEM;
	for (size_t i = 0; i < m->n_lanes; i++) {
		if (memcmp(m->lanes[i].uuid, uuid, DEV_UUID_BYTES))
			continue;
		*ret = i;
		return 0;
	}
	if (m->n_lanes == DEV_GPUS_MAX)
		return -EOVERFLOW;
	m->lanes[m->n_lanes].mover = m;
	memcpy(m->lanes[m->n_lanes].uuid, uuid, DEV_UUID_BYTES);
	*ret = m->n_lanes++;
	return 0;
}

int lane_add_piece(struct mover *m, size_t lane, size_t piece)
{
	struct lane *l = &m->lanes[lane];
	size_t *pieces = array_room(l->pieces, l->n_pieces, sizeof(*pieces));

	if (!pieces)
		return -ENOMEM;
	l->pieces = pieces;
	uint64_t before = l->n_pieces ? piece_of(l, l->n_pieces - 1)->lane_end : 0;

	m->pieces[piece].lane_end = before + m->pieces[piece].len_bytes;
	l->pieces[l->n_pieces++] = piece;
	return 0;
}

uint64_t lane_filled_bytes(const struct mover *m, const struct piece *p)
{
	uint64_t copied = m->lanes[p->lane].copied_bytes, start = p->lane_end - p->len_bytes;

	if (copied >= p->lane_end)
		return p->len_bytes;
	return copied > start ? copied - start : 0;
}

int lane_wait_turn(struct lane *l, size_t n_given)
{
	struct mover *m = l->mover;

	pthread_mutex_lock(&m->lock);
	while (!m->stopped && (!m->started || !l->opened || m->n_given < n_given))
		pthread_cond_wait(&m->changed, &m->lock);
	int r = m->stopped ? -ECANCELED : 0;
	pthread_mutex_unlock(&m->lock);
	return r;
}

static void wake(struct mover *m)
{
	uint64_t one = 1;

	if (write(m->wake_fd, &one, sizeof(one)) < 0)
		return; /* full: it is awake already */
}

/* What went out is to be free when that is told; what came in is the caller's before it is unmapped here. */
void lane_end_thread(struct lane *l)
{
	struct mover *m = l->mover;

	pthread_mutex_lock(&m->lock);
	bool closes = --l->n_active == 0;
	pthread_mutex_unlock(&m->lock);
	if (closes && m->to_host)
		lane_close(l);
	pthread_mutex_lock(&m->lock);
	bool last = --m->n_running == 0;
	pthread_mutex_unlock(&m->lock);
	if (last)
		wake(m);
	if (closes && !m->to_host)
		lane_close(l);
}

/* Bytes without a gap from @p on, as far as @limit. */
static uint64_t run_bytes(const struct lane *l, const struct place *p, uint64_t limit,
			  uint64_t most)
{
	uint64_t bytes = 0;

	for (size_t i = p->piece; i < l->n_pieces && bytes < most; i++) {
		bytes += piece_of(l, i)->len_bytes - (i == p->piece ? p->bytes : 0);
		if (!is_followed(l, i))
			break;
	}
	bytes = bytes < most ? bytes : most;
	return bytes < limit - p->done ? bytes : limit - p->done;
}

void place_advance(const struct lane *l, struct place *p, uint64_t bytes)
{
	p->done += bytes;
	p->bytes += bytes;
	while (p->piece < l->n_pieces && p->bytes >= piece_of(l, p->piece)->len_bytes)
		p->bytes -= piece_of(l, p->piece++)->len_bytes;
}

int lane_find_run(struct lane *l, const struct place *p, const uint64_t *limit, bool block,
		  uint64_t most, uint64_t *ret_bytes)
{
	struct mover *m = l->mover;
	int r = STEP_BEGUN;

	if (p->piece == l->n_pieces)
		return STEP_NONE;
	pthread_mutex_lock(&m->lock);
	while (block && !m->stopped && *limit == p->done)
		pthread_cond_wait(&m->changed, &m->lock);
	if (m->stopped)
		r = -ECANCELED;
	else if (*limit == p->done)
		r = STEP_NOT_YET;
	else
		*ret_bytes = run_bytes(l, p, *limit, most);
	pthread_mutex_unlock(&m->lock);
	return r;
}

static uint64_t step_bytes(const struct mover *m)
{
	return lane_takes_turns(m) ? TURN_BYTES : STEP_BYTES;
}

/* Whether what is to be copied is known to be worth it first. */
static bool is_held_back(const struct lane *l)
{
	return l->n_digesters && l->mover->to_host;
}

/* Bytes of one fate, and where they are. Returns one of STEP_, or <0. */
static int find_step(struct lane *l, struct step *s, bool block)
{
	const struct mover *m = l->mover;
	const uint64_t *limit = is_held_back(l) ? &l->digested_bytes : &l->usable_bytes;
	bool knows = is_held_back(l) || (!m->to_host && chunks_are_known(m));
	int r = lane_find_run(l, &l->copying, limit, block, knows ? ZERO_BYTES : step_bytes(m),
			      &s->bytes);

	if (r != STEP_BEGUN)
		return r;
	uint64_t offset = place_offset(l, &l->copying);
	uint64_t inside = offset % m->host->segment_bytes;
	s->lane = l;
	s->at = l->at + offset;
	s->inside = inside;
	s->fate = knows ? chunks_fate(m, offset, &s->bytes) : CHUNK_COPY;
	if (s->fate == CHUNK_ZERO && !m->to_host)
		return r;
	if (s->bytes > m->host->segment_bytes - inside)
		s->bytes = m->host->segment_bytes - inside;
	return r;
}

/* Whether the step is nothing to the host copy's memory. */
static bool needs_no_segment(struct mover *m, const struct step *s, size_t segment)
{
	return s->fate == CHUNK_KEEP ||
	       (s->fate == CHUNK_ZERO &&
		(!m->to_host || host_copy_skips_zeros(m->host, segment, true)));
}

/* The next step, placed but not begun. Returns one of STEP_, or <0. */
static int place_step(struct lane *l, struct step *s, bool block, struct brumate_error *err)
{
	struct host_copy *h = l->mover->host;
	const size_t slot = (size_t)(s - l->steps);

	*s = (struct step){ .clean = true };
	int r = find_step(l, s, block);
	if (r != STEP_BEGUN)
		return r;
	const size_t i = (size_t)((s->at - l->at) / h->segment_bytes);
	if (!needs_no_segment(l->mover, s, i)) {
		r = host_copy_get(h, i, block, &s->segment, err);
		if (r != 0)
			return r < 0 ? r : STEP_NOT_YET;
		bool direct = !s->segment->spilled && (s->segment->pinned || slot >= l->n_slots);
		uint64_t most = direct ? step_bytes(l->mover) : SLOT_BYTES;
		s->bytes = s->bytes < most ? s->bytes : most;
		s->clean = h->clean[i];
		s->slot = direct ? NULL : l->ring->at + slot * SLOT_BYTES;
	}
	place_advance(l, &l->copying, s->bytes);
	return STEP_BEGUN;
}

/* What was never mapped page by page is read faster than it would be mapped. */
static int read_slot(const struct step *s)
{
	for (uint64_t done = 0; done < s->bytes;) {
		ssize_t n = pread(s->segment->fd, s->slot + done, s->bytes - done,
				  (off_t)(s->inside + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (uint64_t)n;
	}
	return 0;
}

/* Between a slot and a disk. */
static int move_spilled(const struct step *s)
{
	const struct host_copy *h = s->lane->mover->host;
	uint64_t at = s->at - s->lane->at;
	bool write = s->lane->mover->to_host;
	int r = fault_point(write ? "data.spill-write" : "data.spill-read");

	if (r < 0)
		return r;
	if (s->fate == CHUNK_ZERO)
		memset(s->slot, 0, s->bytes);
	return (write ? spill_write : spill_read)(s->segment->fd, &h->key, at - s->inside, at,
						  s->slot, s->bytes);
}

static void run_crew_copy(struct crew_job *job)
{
	struct step *s = (struct step *)job;
	struct mover *m = s->lane->mover;
	int r = 0;

	if (s->segment->spilled)
		r = move_spilled(s);
	else if (s->fate == CHUNK_ZERO)
		segment_zero(s->segment, s->inside, s->bytes);
	else if (m->to_host)
		memcpy(s->segment->at + s->inside, s->slot, s->bytes);
	else
		r = read_slot(s);
	pthread_mutex_lock(&m->lock);
	s->moved = true;
	s->error = r;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
}

static void give_to_crew(struct step *s)
{
	s->job.run = run_crew_copy;
	s->given = true;
	crew_add(s->lane->mover->crew, &s->job);
}

static int wait_moved(struct step *s, struct brumate_error *err)
{
	struct mover *m = s->lane->mover;

	pthread_mutex_lock(&m->lock);
	while (s->given && !s->moved)
		pthread_cond_wait(&m->changed, &m->lock);
	int r = s->error;
	pthread_mutex_unlock(&m->lock);
	return r < 0 ? brumate_fail(err, -r, "host copy: %s: %m", m->to_host ? "write" : "read")
		     : 0;
}

/* Host memory of a direct copy, or the slot. */
static char *near_end(const struct step *s)
{
	return s->slot ? s->slot : s->segment->at + s->inside;
}

static int begin_step(struct lane *l, struct step *s, bool block, struct brumate_error *err)
{
	struct mover *m = l->mover;
	int r = place_step(l, s, block, err);

	if (r != STEP_BEGUN)
		return r;
	if (s->fate == CHUNK_ZERO && m->to_host && !s->clean)
		give_to_crew(s);
	if (s->fate == CHUNK_KEEP || (s->fate == CHUNK_ZERO && m->to_host))
		return STEP_BEGUN;
	r = fault_point("data.copy");
	if (r < 0)
		return brumate_fail(err, -r, "copy: %m");
	if (s->fate == CHUNK_ZERO) {
		r = m->ops->zero(l->copies, s->at, s->bytes, &s->ticket, err);
		return r < 0 ? r : STEP_BEGUN;
	}
	if (m->to_host)
		r = m->ops->copy_out(l->copies, near_end(s), s->at, s->bytes, &s->ticket, err);
	else if (s->slot)
		give_to_crew(s);
	return r < 0 ? r : STEP_BEGUN;
}

/* In the middle: from the one copy to the other. */
static int turn_step(struct step *s, struct brumate_error *err)
{
	struct lane *l = s->lane;
	const struct dev_memory_ops *ops = l->mover->ops;

	if (s->fate != CHUNK_COPY)
		return 0;
	if (!l->mover->to_host) {
		int r = wait_moved(s, err);

		return r < 0 ? r
			     : ops->copy_in(l->copies, s->at, near_end(s), s->bytes, &s->ticket,
					    err);
	}
	int r = ops->wait(l->copies, s->ticket, err);
	if (r == 0 && s->slot)
		give_to_crew(s);
	return r;
}

static int end_step(struct step *s, struct brumate_error *err)
{
	struct mover *m = s->lane->mover;
	int r = 0;

	if (m->to_host)
		r = wait_moved(s, err);
	else
		r = m->ops->wait(s->lane->copies, s->ticket, err);
	pthread_mutex_lock(&m->lock);
	m->done_bytes += s->bytes;
	m->zero_bytes += s->fate == CHUNK_ZERO ? s->bytes : 0;
	m->same_bytes += s->fate == CHUNK_KEEP ? s->bytes : 0;
	s->lane->copied_bytes += s->bytes;
	if (!m->to_host || m->early)
		mover_note(m);
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	if (r == 0 && !m->to_host && (r = fault_point("data.filled")) < 0)
		brumate_fail(err, -r, "copy: %m");
	return r;
}

/* Half of the window is for copies of the GPU, half for those of the crew. */
static int copy_pieces(struct lane *l, struct brumate_error *err)
{
	size_t begun = 0, turned = 0, ended = 0;
	const size_t window = l->n_slots ? l->n_slots : WINDOW;
	const bool one = lane_takes_turns(l->mover) && !l->n_slots, out = l->mover->to_host;
	const size_t most_begun = one && out ? 1 : window, most_turned = one && !out ? 1 : window / 2;
	bool more = true;
	int r = 0;

	while (r >= 0 && (more || ended < begun)) {
		if (more && begun - ended < window && begun - turned < most_begun) {
			r = begin_step(l, &l->steps[begun % window], begun == ended, err);
			begun += r == STEP_BEGUN;
			more = r != STEP_NONE;
			if (r != STEP_NOT_YET)
				continue;
		}
		if (turned < begun && turned - ended < most_turned)
			r = turn_step(&l->steps[turned++ % window], err);
		else
			r = end_step(&l->steps[ended++ % window], err);
	}
	for (; r < 0 && ended < begun; ended++)
		wait_moved(&l->steps[ended % window], NULL);
	return r < 0 ? r : 0;
}

static void *run_copy(void *arg)
{
	struct lane *l = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = lane_wait_turn(l, 0);

	if (r < 0)
		brumate_fail(&err, -r, "cancelled");
	if (r == 0 && l->mover->to_host && !is_held_back(l))
		host_copy_want(l->mover->host, 0, l->mover->host->n_segments);
	if (r == 0 && l->mover->host->needs_ring)
		r = lane_take_ring(l, &err);
	if (r == 0)
		r = l->mover->flags & TRANSFER_LIVE ? lane_copy_live(l, &err)
						    : copy_pieces(l, &err);
	if (r < 0) {
		if (!err.code)
			brumate_fail(&err, -r, "copy: %m");
		mover_fail(l->mover, &err);
	}
	lane_end_thread(l);
	return NULL;
}

static int start_lane(struct lane *l, struct brumate_error *err)
{
	static void *(*const runs[])(void *) = { lane_run_map, run_copy, lane_run_digest };
	const uint32_t flags = l->mover->flags;
	const size_t n = flags & TRANSFER_WITH_DIGESTS && !(flags & TRANSFER_LIVE) ? 3 : 2;

	for (; l->n_threads < n; l->n_threads++) {
		int r = pthread_create(&l->threads[l->n_threads], NULL, runs[l->n_threads], l);

		if (r)
			return brumate_fail(err, r, "threads: %m");
		l->mover->n_running++;
		l->n_active++;
	}
	return 0;
}

int lanes_start(struct mover *m, struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&m->lock);
	for (size_t i = 0; i < m->n_lanes && r == 0; i++)
		r = start_lane(&m->lanes[i], err);
	pthread_mutex_unlock(&m->lock);
	return r;
}

void lanes_finish(struct mover *m)
{
	for (size_t i = 0; i < m->n_lanes; i++)
		for (size_t t = 0; t < m->lanes[i].n_threads; t++)
			pthread_join(m->lanes[i].threads[t], NULL);
	for (size_t i = 0; i < m->n_lanes; i++)
		free(m->lanes[i].pieces);
	free(take_ptr(&m->lanes));
	m->n_lanes = 0;
}
