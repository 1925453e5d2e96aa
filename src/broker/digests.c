// SPDX-License-Identifier: MIT
/* Digests of copied memory: stored, compared, and computed on the GPU. See digests.h. */
#include "broker/digests.h"
#include "base/fault.h"
#include "base/log.h"
#include "wire/host-copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RUN_BYTES (1ull << 30) /* digested at a time; needs 8 MiB of scratch memory */

struct digests {
	size_t n, n_known; /* known: under the transfer's lock */
	struct digest_table *table;
	struct digest *had; /* the digests before the transfer; NULL: unknown */
	struct digest *now;
	bool *zero; /* chunks that are zero; on the way in, by @had */
};

void digests_free(struct digests *d)
{
	if (!d)
		return;
	digest_table_free(d->table);
	free(d->had);
	free(d->now);
	free(d->zero);
	free(d);
}
DEFINE_AUTO(struct digests *, digests_free)

/* Finds the chunks whose digest is that of zeros. */
static int find_zeros(struct digests *d)
{
	struct digest zero;
	int r = chunk_digest_zeros(&zero);

	for (size_t i = 0; i < d->n && r == 0; i++)
		d->zero[i] = !memcmp(&d->had[i], &zero, sizeof(zero));
	return r;
}

/* On the way out the copy may hold anything from now on, so its table is marked as invalid. */
static int take_table(struct digests *d, bool to_host)
{
	int r = fault_point("data.digests");

	if (r < 0)
		return r;
	if (digest_table_is_whole(d->table)) {
		d->had = calloc(d->n, sizeof(*d->had));
		if (!d->had)
			return -ENOMEM;
		memcpy(d->had, digest_table_digests(d->table), d->n * sizeof(*d->had));
	}
	if (to_host)
		digest_table_set_whole(d->table, false);
	return d->had && !to_host ? find_zeros(d) : 0;
}

int digests_new(struct transfer *t, int fd, struct brumate_error *err)
{
	auto_(digests_free) struct digests *d = calloc(1, sizeof(*d));

	if (!d)
		return brumate_fail(err, ENOMEM, "digests: %m");
	d->n = (size_t)(t->total_bytes / CHUNK_BYTES_MAX);
	d->now = calloc(d->n, sizeof(*d->now));
	d->zero = calloc(d->n, sizeof(*d->zero));
	if (!d->now || !d->zero)
		return brumate_fail(err, ENOMEM, "digests: %m");
	int r = fd < 0 ? 0 : digest_table_open(&d->table, fd, t->total_bytes);
	if (r == 0 && d->table)
		r = take_table(d, t->to_host);
	if (r < 0)
		return brumate_fail(err, -r, "digests: %m");
	pthread_mutex_lock(&t->lock);
	digests_free(t->digests);
	t->digests = take_ptr(&d);
	pthread_mutex_unlock(&t->lock);
	return 0;
}

static enum chunk_fate chunk_fate(const struct transfer *t, size_t i)
{
	const struct digests *d = t->digests;

	if (t->to_host && d->had && !memcmp(&d->had[i], &d->now[i], sizeof(d->now[i])))
		return CHUNK_KEEP;
	return d->zero[i] ? CHUNK_ZERO : CHUNK_COPY;
}

enum chunk_fate digests_fate(const struct transfer *t, uint64_t offset, uint64_t *bytes)
{
	size_t first = (size_t)(offset / CHUNK_BYTES_MAX);
	size_t n = (size_t)(*bytes / CHUNK_BYTES_MAX), same = 1;
	enum chunk_fate all = chunk_fate(t, first);

	while (same < n && chunk_fate(t, first + same) == all)
		same++;
	*bytes = same * (uint64_t)CHUNK_BYTES_MAX;
	return all;
}

/* Whether any byte of [at, end) of the host copy has to be written or read. */
static bool is_needed(const struct transfer *t, uint64_t at, uint64_t end)
{
	while (at < end) {
		uint64_t bytes = end - at;
		enum chunk_fate fate = digests_fate(t, at, &bytes);

		if (fate == CHUNK_COPY)
			return true;
		if (fate == CHUNK_ZERO && t->to_host &&
		    !segments_skips_zeros(t->host, (size_t)(at / t->host->segment_bytes), false))
			return true;
		at += bytes;
	}
	return false;
}

bool digests_want(const struct transfer *t, uint64_t offset, uint64_t bytes)
{
	const uint64_t end = offset + bytes, segment_bytes = t->host->segment_bytes;
	bool unpinned = false;

	while (offset < end) {
		size_t i = (size_t)(offset / segment_bytes);
		uint64_t next = (i + 1) * segment_bytes;

		next = next < end ? next : end;
		if (is_needed(t, offset, next)) {
			unpinned |=
				!t->to_host && !segment_is_worth_pinning(t->host->parts[i].segment);
			segments_want(t->host, i, i + 1);
		}
		offset = next;
	}
	return unpinned;
}

bool *digests_find_needed(const struct transfer *t)
{
	const struct segments *h = t->host;
	bool *needed = calloc(h->n_segments, sizeof(*needed));

	for (size_t i = 0; needed && i < h->n_segments; i++) {
		uint64_t start = i * h->segment_bytes, end = start + h->segment_bytes;

		needed[i] = is_needed(t, start, end < h->total_bytes ? end : h->total_bytes);
	}
	return needed;
}

bool digests_are_known(const struct transfer *t)
{
	return t->digests && t->digests->had;
}

static int fail_differs(const struct transfer *t, uint64_t offset, struct brumate_error *err)
{
	size_t i = 0;

	while (i + 1 < t->n_pieces && t->pieces[i + 1].offset <= offset)
		i++;
	uint64_t start = offset - t->pieces[i].offset;
	brumate_fail(err, EBADMSG,
		     "piece %zu of %zu: bytes %#llx to %#llx in device memory are not those that "
		     "were saved",
		     i + 1, t->n_pieces, (unsigned long long)start,
		     (unsigned long long)(start + CHUNK_BYTES_MAX));
	brumate_hint(err, "the host's memory, the GPU's or the link between them is faulty");
	return -EBADMSG;
}

int digests_learn(struct transfer *t, uint64_t offset, const struct digest *digests,
		  const bool *zero, size_t n, struct brumate_error *err)
{
	struct digests *d = t->digests;
	size_t first = (size_t)(offset / CHUNK_BYTES_MAX);

	memcpy(&d->now[first], digests, n * sizeof(*digests));
	if (t->to_host)
		memcpy(&d->zero[first], zero, n * sizeof(*zero));
	for (size_t i = first; !t->to_host && d->had && i < first + n; i++)
		if (memcmp(&d->had[i], &d->now[i], sizeof(d->now[i])))
			return fail_differs(t, i * (uint64_t)CHUNK_BYTES_MAX, err);
	pthread_mutex_lock(&t->lock);
	d->n_known += n;
	pthread_mutex_unlock(&t->lock);
	return 0;
}

bool digests_tell(struct transfer *t, uint64_t start, uint64_t end)
{
	static const struct digest none;
	const struct digests *d = t->digests;

	if (!d || !d->table)
		return false;
	for (size_t i = (size_t)(start / CHUNK_BYTES_MAX); i < end / CHUNK_BYTES_MAX; i++) {
		if (!memcmp(&d->now[i], &none, sizeof(none)))
			return false;
		digest_table_digests(d->table)[i] = d->now[i];
	}
	return true;
}

bool digests_are_compared(const struct transfer *t)
{
	const struct digests *d = t->digests;

	return d && d->had && !t->to_host && d->n_known == d->n;
}

void digests_finish(struct transfer *t)
{
	struct digests *d = t->digests;

	if (!d || !d->table || !t->to_host || d->n_known != d->n)
		return;
	memcpy(digest_table_digests(d->table), d->now, d->n * sizeof(*d->now));
	digest_table_set_whole(d->table, true);
}

/* ---- computed on the GPU ---- */

struct run {
	uint64_t offset, bytes;
};

void digests_open_lane(struct lane *l)
{
	struct transfer *t = l->transfer;
	uint64_t most = t->total_bytes < RUN_BYTES ? t->total_bytes : RUN_BYTES;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	for (; l->n_digesters < LANE_DIGESTERS; l->n_digesters++)
		if (t->ops->digester_open(l->memory, most, &l->digesters[l->n_digesters], &err) < 0)
			break;
	if (!l->n_digesters)
		log_warn("memory is copied without digests: %s", err.text);
}

void digests_close_lane(struct lane *l)
{
	while (l->n_digesters)
		l->transfer->ops->digester_close(l->digesters[--l->n_digesters]);
}

static int begin_digests(struct lane *l, struct position *p, struct run *run,
			 struct dev_digester *d, bool block, struct brumate_error *err)
{
	const struct transfer *t = l->transfer;
	const uint64_t *limit = t->to_host ? &l->usable_bytes : &l->copied_bytes;
	int r = lane_find_run(l, p, limit, block, RUN_BYTES, &run->bytes);

	if (r != LANE_FOUND)
		return r;
	run->offset = lane_offset(l, p);
	lane_advance(l, p, run->bytes);
	r = t->ops->digest(d, l->at + run->offset, run->bytes, err);
	return r < 0 ? r : LANE_FOUND;
}

static int end_digests(struct lane *l, const struct run *run, struct dev_digester *d,
		       struct brumate_error *err)
{
	static const size_t most = RUN_BYTES / CHUNK_BYTES_MAX;
	struct digest digests[RUN_BYTES / CHUNK_BYTES_MAX];
	bool zero[RUN_BYTES / CHUNK_BYTES_MAX];
	struct transfer *t = l->transfer;
	size_t n = (size_t)(run->bytes / CHUNK_BYTES_MAX);

	if (n > most)
		return brumate_fail(err, EINVAL, "digests: %zu chunks", n);
	int r = t->ops->digest_wait(d, digests, zero, err);
	if (r == 0)
		r = digests_learn(t, run->offset, digests, zero, n, err);
	if (r < 0)
		return r;
	if (t->to_host && t->host && t->settled)
		digests_want(t, run->offset, run->bytes);
	pthread_mutex_lock(&t->lock);
	l->digested_bytes += run->bytes;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return 0;
}

int digests_compute(struct lane *l, struct brumate_error *err)
{
	struct position position = { 0 };
	struct run runs[LANE_DIGESTERS];
	size_t begun = 0, ended = 0;
	bool more = true;
	int r = lane_wait_turn(l, 0);
	const size_t window = r < 0 ? 0 : l->n_digesters; /* valid once the lane is open */

	/* On the way in, digests are computed only if there are some to compare with. */
	while (r >= 0 && window && (more || ended < begun)) {
		if (more && begun - ended < window) {
			r = begin_digests(l, &position, &runs[begun % window],
					  l->digesters[begun % window], begun == ended, err);
			begun += r == LANE_FOUND;
			more = r != LANE_DONE;
			if (r != LANE_NOT_YET)
				continue;
		}
		r = end_digests(l, &runs[ended % window], l->digesters[ended % window], err);
		ended++;
	}
	return r < 0 ? r : 0;
}
