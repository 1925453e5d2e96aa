// SPDX-License-Identifier: MIT
/*
 * Chunks of packs that were damaged on their way, asked for once more. Writes into files of the checkpoint
 * that is being pulled and of no other.
 */
#include "remote/object.h"
#include "remote/pull.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "chunks/reader.h"

struct piece {
	size_t item; /* of the pull */
	uint64_t offset, len_bytes;
};

struct mend {
	struct pull *pull;
	struct piece *pieces;
	size_t n;
	bool failed; /* no memory for all of them */
};

static void fini(struct mend *m)
{
	free(m->pieces);
}
DEFINE_AUTO_FINI(struct mend, fini)

static void note(void *arg, const struct chunks_damage *damage)
{
	struct mend *m = arg;
	struct piece *pieces = array_room(m->pieces, m->n, sizeof(*pieces));

	if (!pieces) {
		m->failed = true;
		return;
	}
	m->pieces = pieces;
	for (size_t i = 0; i < m->pull->n_items; i++)
		if (!strcmp(m->pull->items[i].file.path, damage->path)) {
			m->pieces[m->n++] =
				(struct piece){ i, damage->record->offset,
						 chunk_padded(damage->record->stored_bytes) };
			return;
		}
}

static int get_piece(void *arg, struct session *s, size_t i, struct brumate_error *err)
{
	const struct mend *m = arg;
	const struct piece *piece = &m->pieces[i];
	const struct pull_item *it = &m->pull->items[piece->item];
	auto_close int fd =
		openat(m->pull->writer.dir_fd, it->file.path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	struct stat st;

	if (fd < 0 || fstat(fd, &st) < 0)
		return brumate_fail(err, errno, "%s: %m", it->file.path);
	if (st.st_nlink > 1)
		return 0;
	int r = object_get_range(s, it->key, piece->offset, piece->len_bytes, fd, err);
	if (r == 0 && fsync(fd) < 0)
		return brumate_fail(err, errno, "%s: write to disk: %m", it->file.path);
	return r;
}

int pull_mend(struct pull *p, const struct pool_watch *watch, struct brumate_error *err)
{
	auto_(fini) struct mend m = { .pull = p };
	int r = chunks_verify(p->writer.dir_fd, &p->found.manifest, note, &m, watch->progress,
			      watch->arg, err);

	if (r < 0)
		return r;
	if (m.failed)
		return brumate_fail(err, ENOMEM, "%m");
	return pool_run(&p->client, m.n, get_piece, &m, watch, err);
}
