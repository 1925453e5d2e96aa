// SPDX-License-Identifier: MIT
/* Blocks of checkpoints, each counted once; see store.h. */
#include "store/store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>

enum { BLOCK_BYTES = 512 }; /* of st_blocks, whatever the file system */

void usage_seen_fini(struct usage_seen *s)
{
	free(s->slots);
	*s = USAGE_SEEN_EMPTY;
}

static ino_t *slot_of(ino_t *slots, size_t n_slots, ino_t inode)
{
	size_t i = (size_t)(inode * 0x9e3779b97f4a7c15ull);

	while (slots[i & (n_slots - 1)] && slots[i & (n_slots - 1)] != inode)
		i++;
	return &slots[i & (n_slots - 1)];
}

static int grow(struct usage_seen *s)
{
	size_t n = s->n_slots ? 2 * s->n_slots : 64;
	ino_t *slots = calloc(n, sizeof(*slots));

	if (!slots)
		return -ENOMEM;
	for (size_t i = 0; i < s->n_slots; i++)
		if (s->slots[i])
			*slot_of(slots, n, s->slots[i]) = s->slots[i];
	free(s->slots);
	s->slots = slots;
	s->n_slots = n;
	return 0;
}

/* 1: it is there for the first time; 0; -ENOMEM. */
static int note(struct usage_seen *s, ino_t inode)
{
	if (2 * (s->n + 1) > s->n_slots && grow(s) < 0)
		return -ENOMEM;
	ino_t *slot = slot_of(s->slots, s->n_slots, inode);
	if (*slot)
		return 0;
	*slot = inode;
	s->n++;
	return 1;
}

static int add(struct usage *u, struct usage_seen *seen, int dir_fd, const char *path)
{
	struct stat st;

	if (fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return 0;
	uint64_t bytes = (uint64_t)st.st_blocks * BLOCK_BYTES;
	if (st.st_nlink < 2) {
		u->disk_bytes += bytes;
		return 0;
	}
	int r = note(seen, st.st_ino);
	u->shared_bytes += bytes;
	if (r == 1)
		u->disk_bytes += bytes;
	return r < 0 ? r : 0;
}

int usage_of(struct usage *ret, const struct store_image *i, struct usage_seen *seen)
{
	const struct manifest *m = &i->manifest;
	struct usage u = { 0 };
	int r = add(&u, seen, i->dir_fd, STORE_MANIFEST_NAME);

	for (size_t k = 0; r == 0 && k < m->n_files; k++)
		r = add(&u, seen, i->dir_fd, m->files[k].path);
	for (size_t k = 0; r == 0 && k < m->memory.n_packs; k++)
		r = add(&u, seen, i->dir_fd, m->memory.packs[k].path);
	if (r == 0)
		*ret = u;
	return r;
}
