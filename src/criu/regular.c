// SPDX-License-Identifier: MIT
/*
 * Rewrites what a dump says of regular files: files.img, entry by entry. What our messages do not name is kept as it is.
 */
#include "criu/images.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "images.pb-c.h"

enum { TYPE_REGULAR = 1, NUMBER_BYTES = 4 };

/* The images grow by a few bytes an entry. */
struct output {
	uint8_t *buf; /* owned */
	size_t len, room;
};

static int reserve(struct output *o, size_t n)
{
	size_t room = o->len + n > o->room ? 2 * (o->len + n) : o->room;
	uint8_t *grown = room > o->room ? realloc(o->buf, room) : o->buf;

	if (!grown)
		return -ENOMEM;
	o->buf = grown;
	o->room = room;
	return 0;
}

static void put_number(struct output *o, uint32_t number)
{
	const uint32_t stored = htole32(number);

	memcpy(o->buf + o->len, &stored, NUMBER_BYTES);
	o->len += NUMBER_BYTES;
}

static int put_entry(struct output *o, const CriuImage__File *m)
{
	size_t len = criu_image__file__get_packed_size(m);

	if (len > UINT32_MAX || reserve(o, NUMBER_BYTES + len) < 0)
		return -ENOMEM;
	put_number(o, (uint32_t)len);
	criu_image__file__pack(m, o->buf + o->len);
	o->len += len;
	return 0;
}

/* ---- files that were deleted ---- */

struct removed {
	uint32_t *ids; /* owned */
	size_t n;
};

static int read_removed_of(struct removed *ret, const char *text, size_t len)
{
	struct criu_entries image, entry;
	int r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_REMAP_FPATH);

	if (r < 0)
		return r;
	while ((r = criu_entries_next(&image, &entry)) > 0) {
		CriuImage__RemappedPath *m =
			criu_image__remapped_path__unpack(NULL, entry.left, entry.p);
		uint32_t *more = realloc(ret->ids, (ret->n + 1) * sizeof(*more));

		if (more)
			ret->ids = more;
		if (m && more)
			ret->ids[ret->n++] = m->file_id;
		if (m)
			criu_image__remapped_path__free_unpacked(m, NULL);
		if (!m || !more)
			return m ? -ENOMEM : -EBADMSG;
	}
	return r;
}

static int read_removed(struct removed *ret, int dir_fd)
{
	auto_free char *text = NULL;
	size_t len;
	int r = file_read_plain(dir_fd, "remap-fpath.img", CRIU_IMAGE_BYTES_MAX, &text, &len);

	if (r < 0)
		return r == -ENOENT ? 0 : r;
	return read_removed_of(ret, text, len);
}

static bool is_removed(const struct removed *removed, uint32_t id)
{
	for (size_t i = 0; i < removed->n; i++)
		if (removed->ids[i] == id)
			return true;
	return false;
}

/* ---- all files ---- */

static void change(CriuImage__RegularFile *m, unsigned what)
{
	if (what & CRIU_REGULAR_GIVEN)
		m->has_external = m->external = true;
	if (what & CRIU_REGULAR_ANY_SIZE)
		m->has_size = false;
}

static int rewrite_entry(struct output *o, const struct criu_entries *entry,
			 const struct removed *removed, criu_regular_fn fn, void *arg)
{
	CriuImage__File *m = criu_image__file__unpack(NULL, entry->left, entry->p);

	if (!m)
		return -EBADMSG;
	CriuImage__RegularFile *f = m->type == TYPE_REGULAR ? m->regular : NULL;
	auto_free char *path = f ? strndup((const char *)f->name.data, f->name.len) : NULL;

	if (path && !f->external && !is_removed(removed, m->id))
		change(f, fn(arg, path));
	int r = f && !path ? -ENOMEM : put_entry(o, m);
	criu_image__file__free_unpacked(m, NULL);
	return r;
}

static int rewrite(struct output *o, const char *text, size_t len, const struct removed *removed,
		   criu_regular_fn fn, void *arg)
{
	struct criu_entries image, entry;
	int r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_FILES);

	if (r == 0)
		r = reserve(o, 2 * NUMBER_BYTES);
	if (r < 0)
		return r;
	put_number(o, CRIU_MAGIC_IMAGE);
	put_number(o, CRIU_MAGIC_FILES);
	while ((r = criu_entries_next(&image, &entry)) > 0)
		if ((r = rewrite_entry(o, &entry, removed, fn, arg)) < 0)
			return r;
	return r;
}

int criu_regular_rewrite(int dir_fd, criu_regular_fn fn, void *arg)
{
	static const char name[] = "files.img";
	struct removed removed = { 0 };
	struct output o = { 0 };
	auto_free char *text = NULL;
	size_t len;
	int r = file_read_plain(dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);

	if (r == 0)
		r = read_removed(&removed, dir_fd);
	if (r == 0)
		r = rewrite(&o, text, len, &removed, fn, arg);
	if (r == 0) {
		auto_close int fd =
			openat(dir_fd, name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);

		r = fd < 0 ? -errno : fd_write_full(fd, o.buf, o.len);
	}
	free(removed.ids);
	free(o.buf);
	return r;
}
