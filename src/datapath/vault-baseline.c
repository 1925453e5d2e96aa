// SPDX-License-Identifier: MIT
/* A host copy that stays held while its job runs, so that the next copy is of what has changed. */
#include "datapath/vault.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static struct vault_piece *copy_pieces(const struct vault *h)
{
	struct vault_piece *pieces = calloc(h->n_pieces + 1, sizeof(*pieces));

	for (size_t i = 0; pieces && i < h->n_pieces; i++) {
		pieces[i] = h->pieces[i];
		pieces[i].fd = -1;
	}
	return pieces;
}

/* Fds of the same memory, without its digests. */
static int copy_segments(struct host_copy *ret, const struct host_copy *from)
{
	struct host_copy copy = { from->total_bytes, from->segment_bytes, NULL, 0, NULL };

	copy.segments = calloc(from->n_segments + 1, sizeof(int));
	if (!copy.segments)
		return -ENOMEM;
	for (; copy.n_segments < from->n_segments; copy.n_segments++) {
		int fd = fcntl(from->segments[copy.n_segments], F_DUPFD_CLOEXEC, 0);

		if (fd < 0) {
			int r = -errno;

			host_copy_fini(&copy);
			return r;
		}
		copy.segments[copy.n_segments] = fd;
	}
	host_copy_fini(ret);
	*ret = copy;
	return 0;
}

bool vault_make_baseline(struct vault *h, struct host_copy *ret)
{
	if (!h->n_pieces || !h->copy.n_segments || !h->copy.digests ||
	    !digest_table_is_whole(h->copy.digests) || host_copy_is_spilled(&h->copy))
		return false;
	struct vault_piece *pieces = copy_pieces(h);
	if (!pieces || (ret && copy_segments(ret, &h->copy) < 0)) {
		free(pieces);
		return false;
	}
	h->kept = (struct vault_baseline){ pieces, h->n_pieces, h->copy };
	h->copy = HOST_COPY_EMPTY;
	h->copied = false;
	return true;
}

static bool is_same(const struct vault_piece *a, const struct vault_piece *b)
{
	return proc_is_same(a->process, b->process) && a->id == b->id &&
	       a->len_bytes == b->len_bytes;
}

/* In the same order too: a copy is one run of bytes. Ids are never used again. */
bool vault_baseline_fits(const struct vault *h, const struct vault_piece *pieces, size_t n)
{
	bool same = h->kept.n_pieces == n && n;

	for (size_t i = 0; same && i < n; i++)
		same = is_same(&pieces[i], &h->kept.pieces[i]);
	return same && digest_table_is_whole(h->kept.copy.digests);
}

int vault_take_baseline(struct vault *h, struct host_copy *ret)
{
	if (!h->kept.n_pieces)
		return 0;
	if (!vault_baseline_fits(h, h->pieces, h->n_pieces)) {
		vault_drop_baseline(h);
		return 0;
	}
	*ret = h->kept.copy;
	h->kept.copy = HOST_COPY_EMPTY;
	free(h->kept.pieces);
	h->kept = (struct vault_baseline){ 0 };
	return 1;
}

uint64_t vault_baseline_bytes(const struct vault *h)
{
	return h->kept.n_pieces ? h->kept.copy.total_bytes : 0;
}
