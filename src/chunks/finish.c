// SPDX-License-Identifier: MIT
/* The end of writing memory: the chunk table, and what the manifest says of it. */
#include "chunks/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/fault.h"
#include "base/fd.h"

static int fill_regions(struct chunks_writer *m, struct manifest *manifest)
{
	struct manifest_region *regions = calloc(m->n_sources + 1, sizeof(*regions));

	if (!regions)
		return -ENOMEM;
	for (size_t i = 0; i < m->n_sources; i++)
		regions[i] = m->sources[i].region;
	manifest->memory.regions = regions;
	manifest->memory.n_regions = m->n_sources;
	return 0;
}

static struct chunks_sums sum_up(const struct chunks_writer *m, const struct chunk_table *t)
{
	struct chunks_sums s = { 0 };
	uint64_t own = 0;

	for (size_t k = 0; k < t->n_regions; k++) {
		uint64_t len = t->regions[k].len_bytes;
		size_t first = m->sources[k].first_part;

		s.total += len;
		for (uint64_t i = 0; i < chunk_parts(len); i++)
			if (t->parts[first + i] == CHUNK_ZERO)
				s.zero += chunk_part_bytes(len, i);
	}
	for (size_t i = 0; i < m->ledger.n_chunks; i++) {
		const struct ledger_chunk *c = &m->ledger.chunks[i];

		if (c->state == LEDGER_WRITTEN)
			own += c->record.len_bytes;
	}
	for (size_t i = 0; i < m->ledger.n_packs; i++)
		if (!m->ledger.packs[i].linked)
			s.written += m->ledger.packs[i].len_bytes;
	s.shared = s.total - s.zero - own;
	return s;
}

static int write_table(struct chunks_writer *m, const struct chunk_table *t,
		       struct brumate_error *err)
{
	auto_free void *buf = NULL;
	size_t len = 0;
	int r = chunk_table_encode(t, &buf, &len, err);
	if (r < 0)
		return r;

	r = fault_point("store.write-table");
	if (r < 0)
		return chunks_fail_write(m, r, err);
	auto_close int fd = openat(m->target.dir_fd, strrchr(MANIFEST_TABLE_PATH, '/') + 1,
				   O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	r = fd < 0 ? -errno : fd_write_full(fd, buf, len);
	return r < 0 ? chunks_fail_write(m, r, err) : 0;
}

int chunks_finish(struct chunks_writer *m, struct manifest *manifest, struct chunks_sums *ret,
		  struct brumate_error *err)
{
	auto_(chunk_table_fini) struct chunk_table t = CHUNK_TABLE_EMPTY;
	int r = fill_regions(m, manifest);

	if (r == 0)
		r = ledger_finish(&m->ledger, &t, manifest);
	t.sealed = m->target.key;
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	if ((r = write_table(m, &t, err)) < 0)
		return r;
	*ret = sum_up(m, &t);
	manifest->memory.zero_bytes = ret->zero;
	manifest->memory.shared_bytes = ret->shared;
	manifest->memory.written_bytes = ret->written;
	return 0;
}
