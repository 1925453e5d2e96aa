// SPDX-License-Identifier: MIT
/*
 * What is known of a host copy's chunks: the digests that it has, from its table, and those that the
 * GPU computes of the memory that goes out to it, or that has come in from it.
 */
#include "broker/data-lane.h"
#include "base/fault.h"
#include "wire/host-copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct chunks {
	size_t n, n_known; /* known: under the mover's lock */
	struct digest_table *table;
	struct digest *had; /* NULL: the host copy's digests are not known */
	struct digest *now;
	bool *zero; /* of now; on the way in, of what it had */
};

void chunks_free(struct chunks *c)
{
	if (!c)
		return;
	digest_table_free(c->table);
	free(c->had);
	free(c->now);
	free(c->zero);
	free(c);
}
DEFINE_AUTO(struct chunks *, chunks_free)

/* What a table says of the copy: whether it is zero is told by the digest. */
static int find_zeros(struct chunks *c)
{
	struct digest zero;
	int r = chunk_digest_zeros(&zero);

	for (size_t i = 0; i < c->n && r == 0; i++)
		c->zero[i] = !memcmp(&c->had[i], &zero, sizeof(zero));
	return r;
}

/* On the way out the copy may be anything from now on. */
static int take_table(struct chunks *c, bool to_host)
{
	int r = fault_point("data.digests");

	if (r < 0)
		return r;
	if (digest_table_is_whole(c->table)) {
		c->had = calloc(c->n, sizeof(*c->had));
		if (!c->had)
			return -ENOMEM;
		memcpy(c->had, digest_table_digests(c->table), c->n * sizeof(*c->had));
	}
	if (to_host)
		digest_table_set_whole(c->table, false);
	return c->had && !to_host ? find_zeros(c) : 0;
}

int chunks_new(struct mover *m, int fd, struct brumate_error *err)
{
	auto_(chunks_free) struct chunks *c = calloc(1, sizeof(*c));

	if (!c)
		return brumate_fail(err, ENOMEM, "digests: %m");
	c->n = (size_t)(m->total_bytes / CHUNK_BYTES_MAX);
	c->now = calloc(c->n, sizeof(*c->now));
	c->zero = calloc(c->n, sizeof(*c->zero));
	if (!c->now || !c->zero)
		return brumate_fail(err, ENOMEM, "digests: %m");
	int r = fd < 0 ? 0 : digest_table_open(&c->table, fd, m->total_bytes);
	if (r == 0 && c->table)
		r = take_table(c, m->to_host);
	if (r < 0)
		return brumate_fail(err, -r, "digests: %m");
	pthread_mutex_lock(&m->lock);
	chunks_free(m->chunks);
	m->chunks = take_ptr(&c);
	pthread_mutex_unlock(&m->lock);
	return 0;
}

static enum chunk_fate fate(const struct mover *m, size_t i)
{
	const struct chunks *c = m->chunks;

	if (m->to_host && c->had && !memcmp(&c->had[i], &c->now[i], sizeof(c->now[i])))
		return CHUNK_KEEP;
	return c->zero[i] ? CHUNK_ZERO : CHUNK_COPY;
}

enum chunk_fate chunks_fate(const struct mover *m, uint64_t offset, uint64_t *bytes)
{
	size_t first = (size_t)(offset / CHUNK_BYTES_MAX);
	size_t n = (size_t)(*bytes / CHUNK_BYTES_MAX), same = 1;
	enum chunk_fate all = fate(m, first);

	while (same < n && fate(m, first + same) == all)
		same++;
	*bytes = same * (uint64_t)CHUNK_BYTES_MAX;
	return all;
}

/* Whether anything of [at, end) of the host copy is to be written there, or read. */
static bool is_needed(const struct mover *m, uint64_t at, uint64_t end)
{
	while (at < end) {
		uint64_t bytes = end - at;
		enum chunk_fate fate = chunks_fate(m, at, &bytes);

		if (fate == CHUNK_COPY)
			return true;
		if (fate == CHUNK_ZERO && m->to_host &&
		    !host_copy_skips_zeros(m->host, (size_t)(at / m->host->segment_bytes), false))
			return true;
		at += bytes;
	}
	return false;
}

bool chunks_want(const struct mover *m, uint64_t offset, uint64_t bytes)
{
	const uint64_t end = offset + bytes, segment_bytes = m->host->segment_bytes;
	bool unpinned = false;

	while (offset < end) {
		size_t i = (size_t)(offset / segment_bytes);
		uint64_t next = (i + 1) * segment_bytes;

		next = next < end ? next : end;
		if (is_needed(m, offset, next)) {
			unpinned |= !m->to_host && !segment_is_worth_pinning(m->host->segments[i]);
			host_copy_want(m->host, i, i + 1);
		}
		offset = next;
	}
	return unpinned;
}

bool chunks_are_known(const struct mover *m)
{
	return m->chunks && m->chunks->had;
}

static int fail_differs(const struct mover *m, uint64_t offset, struct brumate_error *err)
{
	size_t i = 0;

	while (i + 1 < m->n_pieces && m->pieces[i + 1].offset <= offset)
		i++;
	uint64_t start = offset - m->pieces[i].offset;
	brumate_fail(err, EBADMSG,
		     "piece %zu of %zu: bytes %#llx to %#llx in device memory are not those that "
		     "were saved",
		     i + 1, m->n_pieces, (unsigned long long)start,
		     (unsigned long long)(start + CHUNK_BYTES_MAX));
	brumate_hint(err, "the host's memory, the GPU's or the link between them is faulty");
	return -EBADMSG;
}

int chunks_learn(struct mover *m, uint64_t offset, const struct digest *digests, const bool *zero,
		 size_t n, struct brumate_error *err)
{
	struct chunks *c = m->chunks;
	size_t first = (size_t)(offset / CHUNK_BYTES_MAX);

	memcpy(&c->now[first], digests, n * sizeof(*digests));
	if (m->to_host)
		memcpy(&c->zero[first], zero, n * sizeof(*zero));
	for (size_t i = first; !m->to_host && c->had && i < first + n; i++)
		if (memcmp(&c->had[i], &c->now[i], sizeof(c->now[i])))
			return fail_differs(m, i * (uint64_t)CHUNK_BYTES_MAX, err);
	pthread_mutex_lock(&m->lock);
	c->n_known += n;
	pthread_mutex_unlock(&m->lock);
	return 0;
}

bool chunks_tell(struct mover *m, uint64_t start, uint64_t end)
{
	static const struct digest none;
	const struct chunks *c = m->chunks;

	if (!c || !c->table)
		return false;
	for (size_t i = (size_t)(start / CHUNK_BYTES_MAX); i < end / CHUNK_BYTES_MAX; i++) {
		if (!memcmp(&c->now[i], &none, sizeof(none)))
			return false;
		digest_table_digests(c->table)[i] = c->now[i];
	}
	return true;
}

bool chunks_are_compared(const struct mover *m)
{
	const struct chunks *c = m->chunks;

	return c && c->had && !m->to_host && c->n_known == c->n;
}

void chunks_finish(struct mover *m)
{
	struct chunks *c = m->chunks;

	if (!c || !c->table || !m->to_host || c->n_known != c->n)
		return;
	memcpy(digest_table_digests(c->table), c->now, c->n * sizeof(*c->now));
	digest_table_set_whole(c->table, true);
}
