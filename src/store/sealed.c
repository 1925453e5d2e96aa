// SPDX-License-Identifier: MIT
/*
 * Sealed files: a head with a salt, then the file's blocks, each encrypted with a key of this file. Each block is
 * authenticated with its number and whether it is the last, so that blocks cannot be swapped or cut off; the key is
 * also derived from the path and the checkpoint, so that files cannot be swapped.
 */
#include "store/sealed.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

#include "base/fd.h"
#include "store/file-tree.h"

enum {
	MAGIC_BYTES = 16,
	SALT_BYTES = 32,
	HEAD_BYTES = MAGIC_BYTES + SALT_BYTES,
	BLOCK_BYTES = 64 << 10,
	BOX_BYTES = BLOCK_BYTES + SEAL_EXTRA_BYTES,
};

static const char magic[MAGIC_BYTES + 1] = "brumate-sealed-1";

/* A file being sealed or opened. */
struct pass {
	int from, to;
	struct seal_key key;
	uint64_t number; /* of the next block */
	uint8_t *in, *out;
};

static int derive(struct pass *p, const struct store_key *key, const uint8_t *salt, const char *id,
		  const char *path)
{
	size_t id_len = strlen(id) + 1, len = SALT_BYTES + id_len + strlen(path);
	auto_free uint8_t *context = malloc(len);

	if (!context)
		return -ENOMEM;
	memcpy(context, salt, SALT_BYTES);
	memcpy(context + SALT_BYTES, id, id_len); /* including its NUL */
	memcpy(context + SALT_BYTES + id_len, path, strlen(path));
	return seal_derive(&p->key, &key->files, "file", context, len);
}

/* The data that block @number is authenticated with. */
static struct seal_with with_block(uint8_t ret[static 9], uint64_t number, bool last)
{
	for (int i = 0; i < 8; i++)
		ret[i] = (uint8_t)(number >> (8 * i));
	ret[8] = last;
	return (struct seal_with){ ret, 9 };
}

static int close_blocks(struct pass *p)
{
	uint8_t with[9];
	ssize_t n;

	do {
		n = fd_read_full(p->from, p->in, BLOCK_BYTES);
		if (n < 0)
			return (int)n;
		/* A full last block is followed by an empty one. */
		int r = seal_close(p->out, &p->key, with_block(with, p->number++, n < BLOCK_BYTES),
				   p->in, (size_t)n);
		if (r == 0)
			r = fd_write_full(p->to, p->out, (size_t)n + SEAL_EXTRA_BYTES);
		if (r < 0)
			return r;
	} while (n == BLOCK_BYTES);
	return 0;
}

static int open_blocks(struct pass *p)
{
	uint8_t with[9];
	ssize_t n;

	do {
		n = fd_read_full(p->from, p->in, BOX_BYTES);
		if (n < 0)
			return (int)n;
		int r = seal_open(p->out, &p->key, with_block(with, p->number++, n < BOX_BYTES),
				  p->in, (size_t)n);
		if (r == 0)
			r = fd_write_full(p->to, p->out, (size_t)n - SEAL_EXTRA_BYTES);
		if (r < 0)
			return r;
	} while (n == BOX_BYTES);
	return 0;
}

static int write_head(struct pass *p, const struct store_key *key, const char *id, const char *path)
{
	uint8_t head[HEAD_BYTES];

	memcpy(head, magic, MAGIC_BYTES);
	if (getrandom(head + MAGIC_BYTES, SALT_BYTES, 0) != SALT_BYTES)
		return -errno;
	int r = derive(p, key, head + MAGIC_BYTES, id, path);
	return r < 0 ? r : fd_write_full(p->to, head, HEAD_BYTES);
}

static int read_head(struct pass *p, const struct store_key *key, const char *id, const char *path)
{
	uint8_t head[HEAD_BYTES];
	ssize_t n = fd_read_full(p->from, head, HEAD_BYTES);

	if (n < 0)
		return (int)n;
	if (n != HEAD_BYTES || memcmp(head, magic, MAGIC_BYTES))
		return -EBADMSG;
	return derive(p, key, head + MAGIC_BYTES, id, path);
}

/* The files of a directory, and what to do with each. */
struct sealed_work {
	int from_fd, to_fd;
	const struct store_key *key;
	const char *id;
	bool close;
};

static int pass_bytes(const struct sealed_work *j, int from, int to, const char *path)
{
	auto_free uint8_t *buffers = malloc(2 * (size_t)BOX_BYTES);

	if (!buffers)
		return -ENOMEM;
	struct pass p = { .from = from, .to = to, .in = buffers, .out = buffers + BOX_BYTES };
	int r = j->close ? write_head(&p, j->key, j->id, path) : read_head(&p, j->key, j->id, path);
	if (r == 0)
		r = j->close ? close_blocks(&p) : open_blocks(&p);
	seal_key_fini(&p.key);
	explicit_bzero(buffers, 2 * (size_t)BOX_BYTES);
	return r;
}

static int pass_file(const struct sealed_work *j, const char *path)
{
	auto_close int from =
		openat(j->from_fd, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NOCTTY);
	auto_close int to =
		openat(j->to_fd, path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);

	return from < 0 || to < 0 ? -errno : pass_bytes(j, from, to, path);
}

int sealed_open_file(int to_fd, int from_fd, const struct store_key *key, const char *id,
		     const char *name)
{
	return pass_bytes(&(struct sealed_work){ .key = key, .id = id }, from_fd, to_fd, name);
}

/* Creates the directories above @path. */
static int make_above(int to_fd, const char *path)
{
	auto_free char *copy = strdup(path);

	if (!copy)
		return -ENOMEM;
	for (char *p = copy; (p = strchr(p, '/')); *p++ = '/') {
		*p = '\0';
		if (mkdirat(to_fd, copy, 0700) < 0 && errno != EEXIST)
			return -errno;
	}
	return 0;
}

static int pass_dir(const struct sealed_work *j, struct brumate_error *err)
{
	auto_(file_tree_fini) struct file_tree t = FILE_TREE_EMPTY;
	int r = file_tree_scan(&t, j->from_fd, NULL, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < t.n_files; i++) {
		const char *path = t.files[i].path;

		r = make_above(j->to_fd, path);
		if (r == 0)
			r = pass_file(j, path);
		if (r == -EBADMSG)
			return brumate_fail(err, EBADMSG,
					    "%s: sealed by another key, or for another place, or "
					    "damaged",
					    path);
		if (r < 0)
			return brumate_fail(err, -r, "%s: %s: %m", path,
					    j->close ? "seal" : "open");
	}
	return 0;
}

int sealed_close_dir(int to_fd, int from_fd, const struct store_key *key, const char *id,
		     struct brumate_error *err)
{
	return pass_dir(&(struct sealed_work){ from_fd, to_fd, key, id, true }, err);
}

int sealed_open_dir(int to_fd, int from_fd, const struct store_key *key, const char *id,
		    struct brumate_error *err)
{
	return pass_dir(&(struct sealed_work){ from_fd, to_fd, key, id, false }, err);
}
