// SPDX-License-Identifier: MIT
/*
 * Sharing packs with earlier checkpoints; see share.h. A pack comes as a whole, with chunks that this
 * checkpoint has no use for: where those are more than three quarters, its chunks are rather written
 * again, so that what nobody needs goes away with the last checkpoint that did.
 */
#include "chunks/share.h"

#include <errno.h>
#include <stdlib.h>

enum { USED_AT_LEAST = 4 }; /* one part in so many */

/* Adds up what of each pack of @image is used. */
static void add_used(uint64_t *used, const struct ledger *l, const struct chunk_table *t,
		     uint32_t image)
{
	for (size_t i = 0; i < l->n_chunks; i++) {
		const struct ledger_chunk *c = &l->chunks[i];

		if (c->state == LEDGER_KNOWN && !c->dead && c->image == image) {
			const struct chunk_record *old = &t->chunks[c->index];

			used[old->pack] += chunk_padded(old->stored_bytes);
		}
	}
}

/* Notes what is in a pack that was linked: chunks of ours, and others. */
static int take_chunks(struct ledger *l, const struct chunk_table *t, uint32_t image, uint32_t pack,
		       uint32_t number)
{
	size_t n;
	const struct chunk_record *old = chunk_table_pack(t, pack, &n);

	for (size_t i = 0; i < n; i++) {
		uint32_t index = (uint32_t)(old + i - t->chunks);
		int64_t at = ledger_find(l, &old[i].digest, old[i].len_bytes);
		struct ledger_chunk *c = at < 0 ? NULL : &l->chunks[at];

		if (c && c->state == LEDGER_KNOWN && c->image == image && c->index == index) {
			c->record = old[i];
			c->record.pack = number;
			continue;
		}
		struct ledger_chunk dead = {
			.record = old[i],
			.state = LEDGER_KNOWN,
			.image = image,
			.index = index,
			.dead = true,
		};
		dead.record.pack = number;
		at = ledger_add_chunk(l, &dead);
		if (at < 0)
			return (int)at;
	}
	return 0;
}

static int share_image(struct ledger *l, const struct chunk_index *x, uint32_t image, int dir_fd,
		       bool *linked, uint64_t *used)
{
	const struct chunk_table *t = chunk_index_table(x, image);

	add_used(used, l, t, image);
	for (uint32_t pack = 0; pack < t->n_packs; pack++) {
		struct ledger_pack entry = { .linked = true,
					     .len_bytes = chunk_table_pack_bytes(t, pack) };

		if (!used[pack] || used[pack] < entry.len_bytes / USED_AT_LEAST ||
		    chunk_index_link(x, image, pack, dir_fd, entry.path, sizeof(entry.path)) < 0)
			continue;
		int64_t number = ledger_add_pack(l, &entry);
		int r = number < 0 ? (int)number : take_chunks(l, t, image, pack, (uint32_t)number);
		if (r < 0)
			return r;
		linked[pack] = true;
	}
	return 0;
}

/* What is in packs that were not linked is to be written. */
static size_t want_rest(struct ledger *l, const struct chunk_table *t, uint32_t image,
			const bool *linked)
{
	size_t n = 0;

	for (size_t i = 0; i < l->n_chunks; i++) {
		struct ledger_chunk *c = &l->chunks[i];

		if (c->state == LEDGER_KNOWN && !c->dead && c->image == image &&
		    !linked[t->chunks[c->index].pack]) {
			c->state = LEDGER_WANTED;
			n++;
		}
	}
	return n;
}

int share_packs(struct ledger *l, const struct chunk_index *x, int dir_fd, size_t *ret_wanted)
{
	size_t wanted = 0;

	for (uint32_t image = 0; image < chunk_index_images(x); image++) {
		const struct chunk_table *t = chunk_index_table(x, image);
		auto_free uint64_t *used = calloc(t->n_packs + 1, sizeof(*used));
		auto_free bool *linked = calloc(t->n_packs + 1, sizeof(*linked));

		if (!used || !linked)
			return -ENOMEM;
		int r = share_image(l, x, image, dir_fd, linked, used);
		if (r < 0)
			return r;
		wanted += want_rest(l, t, image, linked);
	}
	*ret_wanted = wanted;
	return 0;
}
