// SPDX-License-Identifier: MIT
/* A host copy that stays held while its job runs, so that the next copy is of what has changed. */
#include "engine/held.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static struct held_piece *copy_pieces(const struct held *h)
{
	struct held_piece *pieces = calloc(h->n_pieces + 1, sizeof(*pieces));

	for (size_t i = 0; pieces && i < h->n_pieces; i++) {
		pieces[i] = h->pieces[i];
		pieces[i].fd = -1;
	}
	return pieces;
}

/* Fds of the same memory, without its digests. */
static int copy_segments(struct data_copy *ret, const struct data_copy *from)
{
	struct data_copy copy = { from->total_bytes, from->segment_bytes, NULL, 0, NULL };

	copy.segments = calloc(from->n_segments + 1, sizeof(int));
	if (!copy.segments)
		return -ENOMEM;
	for (; copy.n_segments < from->n_segments; copy.n_segments++) {
		int fd = fcntl(from->segments[copy.n_segments], F_DUPFD_CLOEXEC, 0);

		if (fd < 0) {
			int r = -errno;

			data_copy_fini(&copy);
			return r;
		}
		copy.segments[copy.n_segments] = fd;
	}
	data_copy_fini(ret);
	*ret = copy;
	return 0;
}

bool held_keep_copy(struct held *h, struct data_copy *ret)
{
	if (!h->n_pieces || !h->copy.n_segments || !h->copy.digests ||
	    !digest_table_is_whole(h->copy.digests) || data_copy_is_spilled(&h->copy))
		return false;
	struct held_piece *pieces = copy_pieces(h);
	if (!pieces || (ret && copy_segments(ret, &h->copy) < 0)) {
		free(pieces);
		return false;
	}
	h->kept = (struct held_kept){ pieces, h->n_pieces, h->copy };
	h->copy = DATA_COPY_EMPTY;
	h->copied = false;
	return true;
}

static bool is_same(const struct held_piece *a, const struct held_piece *b)
{
	return proc_is_same(a->process, b->process) && a->id == b->id &&
	       a->len_bytes == b->len_bytes;
}

/* In the same order too: a copy is one run of bytes. Ids are never used again. */
bool held_kept_fits(const struct held *h, const struct held_piece *pieces, size_t n)
{
	bool same = h->kept.n_pieces == n && n;

	for (size_t i = 0; same && i < n; i++)
		same = is_same(&pieces[i], &h->kept.pieces[i]);
	return same && digest_table_is_whole(h->kept.copy.digests);
}

int held_take_kept(struct held *h, struct data_copy *ret)
{
	if (!h->kept.n_pieces)
		return 0;
	if (!held_kept_fits(h, h->pieces, h->n_pieces)) {
		held_drop_kept(h);
		return 0;
	}
	*ret = h->kept.copy;
	h->kept.copy = DATA_COPY_EMPTY;
	free(h->kept.pieces);
	h->kept = (struct held_kept){ 0 };
	return 1;
}

uint64_t held_kept_bytes(const struct held *h)
{
	return h->kept.n_pieces ? h->kept.copy.total_bytes : 0;
}
