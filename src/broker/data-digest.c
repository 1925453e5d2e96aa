// SPDX-License-Identifier: MIT
/*
 * The thread of a lane that has the GPU compute digests: on the way out ahead of the copies, which wait
 * for it; on the way in behind them. It is some ten times as fast as the link.
 */
#include "broker/data-lane.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>

#define RUN_BYTES (1ull << 30) /* at a time, and what scratch memory is for: 8 MiB */

struct run {
	uint64_t offset, bytes;
};

void lane_open_digesters(struct lane *l)
{
	struct mover *m = l->mover;
	uint64_t most = m->total_bytes < RUN_BYTES ? m->total_bytes : RUN_BYTES;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	for (; l->n_digesters < DIGESTERS; l->n_digesters++)
		if (m->ops->digester_open(l->memory, most, &l->digesters[l->n_digesters], &err) < 0)
			break;
	if (!l->n_digesters)
		log_warn("memory is copied without digests: %s", err.text);
}

void lane_close_digesters(struct lane *l)
{
	while (l->n_digesters)
		l->mover->ops->digester_close(l->digesters[--l->n_digesters]);
}

static int begin_run(struct lane *l, struct place *p, struct run *run, struct dev_digester *d,
		     bool block, struct brumate_error *err)
{
	const struct mover *m = l->mover;
	const uint64_t *limit = m->to_host ? &l->usable_bytes : &l->copied_bytes;
	int r = lane_find_run(l, p, limit, block, RUN_BYTES, &run->bytes);

	if (r != STEP_BEGUN)
		return r;
	run->offset = place_offset(l, p);
	place_advance(l, p, run->bytes);
	r = m->ops->digest(d, l->at + run->offset, run->bytes, err);
	return r < 0 ? r : STEP_BEGUN;
}

static int end_run(struct lane *l, const struct run *run, struct dev_digester *d,
		   struct brumate_error *err)
{
	static const size_t most = RUN_BYTES / CHUNK_BYTES_MAX;
	struct digest digests[RUN_BYTES / CHUNK_BYTES_MAX];
	bool zero[RUN_BYTES / CHUNK_BYTES_MAX];
	struct mover *m = l->mover;
	size_t n = (size_t)(run->bytes / CHUNK_BYTES_MAX);

	if (n > most)
		return brumate_fail(err, EINVAL, "digests: %zu chunks", n);
	int r = m->ops->digest_wait(d, digests, zero, err);
	if (r == 0)
		r = chunks_learn(m, run->offset, digests, zero, n, err);
	if (r < 0)
		return r;
	if (m->to_host)
		chunks_want(m, run->offset, run->bytes);
	pthread_mutex_lock(&m->lock);
	l->digested_bytes += run->bytes;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static int digest_pieces(struct lane *l, struct brumate_error *err)
{
	const size_t window = l->n_digesters;
	struct place place = { 0 };
	struct run runs[DIGESTERS];
	size_t begun = 0, ended = 0;
	bool more = true;
	int r = 0;

	while (r >= 0 && (more || ended < begun)) {
		if (more && begun - ended < window) {
			r = begin_run(l, &place, &runs[begun % window],
				      l->digesters[begun % window], begun == ended, err);
			begun += r == STEP_BEGUN;
			more = r != STEP_NONE;
			if (r != STEP_NOT_YET)
				continue;
		}
		r = end_run(l, &runs[ended % window], l->digesters[ended % window], err);
		ended++;
	}
	return r < 0 ? r : 0;
}

/* On the way in without digests to compare with there is nothing to do. */
void *lane_run_digest(void *arg)
{
	struct lane *l = arg;
	struct mover *m = l->mover;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int r = lane_wait_turn(l, 0);

	if (r == 0 && l->n_digesters)
		r = digest_pieces(l, &err);
	if (r < 0) {
		if (!err.code)
			brumate_fail(&err, -r, "digests: cancelled");
		mover_fail(m, &err);
	}
	lane_end_thread(l);
	return NULL;
}
