// SPDX-License-Identifier: MIT
/*
 * Rewrites what a dump says of regular files: files.img, entry by entry. What our messages do not name is kept as it is.
 */
#include "criu/images.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "images.pb-c.h"

enum { TYPE_REGULAR = 1, REMAP_GHOST = 1, NUMBER_BYTES = 4 };

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

static int write_image(int dir_fd, const char *name, const struct output *o)
{
	auto_close int fd = openat(dir_fd, name, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW);

	return fd < 0 ? -errno : fd_write_full(fd, o->buf, o->len);
}

/* ---- files that were deleted ---- */

struct removed_file {
	uint32_t id;	/* in files.img */
	uint32_t ghost; /* its number; 0: it has another name */
};

struct removed {
	struct removed_file *items; /* owned */
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
		struct removed_file *more = array_room(ret->items, ret->n, sizeof(*more));

		if (more)
			ret->items = more;
		if (m && more)
			ret->items[ret->n++] = (struct removed_file){
				m->file_id, !m->has_how || m->how == REMAP_GHOST ? m->remap_id : 0
			};
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
		if (removed->items[i].id == id)
			return true;
	return false;
}

/* 1: @entry is a file of @removed that has another name; 0, -errno. */
static int take_linked(char **ret, const struct criu_entries *entry, const struct removed *removed)
{
	CriuImage__File *m = criu_image__file__unpack(NULL, entry->left, entry->p);
	int r = m ? 0 : -EBADMSG;

	for (size_t i = 0; r == 0 && m->regular && i < removed->n; i++) {
		if (removed->items[i].ghost || removed->items[i].id != m->id)
			continue;
		*ret = strndup((const char *)m->regular->name.data, m->regular->name.len);
		r = *ret ? 1 : -ENOMEM;
	}
	if (m)
		criu_image__file__free_unpacked(m, NULL);
	return r;
}

int criu_linked_find(int dir_fd, char **ret)
{
	struct removed removed = { 0 };
	auto_free char *text = NULL;
	struct criu_entries image, entry;
	size_t len;
	int r = read_removed(&removed, dir_fd), found = 0;

	if (r == 0 && removed.n)
		r = file_read_plain(dir_fd, "files.img", CRIU_IMAGE_BYTES_MAX, &text, &len);
	if (r == 0 && removed.n)
		r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_FILES);
	while (r == 0 && removed.n && !found && (r = criu_entries_next(&image, &entry)) > 0)
		r = (found = take_linked(ret, &entry, &removed)) < 0 ? found : 0;
	free(removed.items);
	return r < 0 ? r : found;
}

/* ---- all files ---- */

static void change(CriuImage__RegularFile *m, unsigned what)
{
	if (what & CRIU_REGULAR_GIVEN)
		m->has_external = m->external = true;
	/* CRIU opens what it is given by a link in /proc. Once a file is open, the flag means nothing. */
	if (m->external)
		m->flags &= ~(uint32_t)O_NOFOLLOW;
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

	if (path)
		change(f, f->external || is_removed(removed, m->id) ? 0 : fn(arg, path));
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
	if (r == 0)
		r = write_image(dir_fd, name, &o);
	free(removed.items);
	free(o.buf);
	return r;
}

/* ---- ghosts ---- */

#define MAGIC_GHOST 0x52583605u

enum { GHOST_HEAD_BYTES_MAX = 64 << 10, COPY_STEP_BYTES = 1 << 30 };

/* The image of a ghost, of which the head was read. */
struct ghost_image {
	int fd;
	uint64_t offset; /* of what follows */
	struct criu_ghost ghost;
	bool has_chunks;
};

static int read_number(int fd, uint64_t *offset, uint32_t *ret)
{
	uint32_t stored;
	ssize_t n = fd_read_at(fd, &stored, NUMBER_BYTES, *offset);

	if (n < NUMBER_BYTES)
		return n < 0 ? (int)n : n ? -EBADMSG : -ENODATA;
	*offset += NUMBER_BYTES;
	*ret = le32toh(stored);
	return 0;
}

/* The next message of an image that goes on with something else. -ENODATA: there is nothing more. */
static int read_message(int fd, uint64_t *offset, uint8_t **ret, size_t *ret_len)
{
	uint32_t len = 0;
	int r = read_number(fd, offset, &len);

	if (r < 0)
		return r;
	auto_free uint8_t *buf = len <= GHOST_HEAD_BYTES_MAX ? malloc((size_t)len + 1) : NULL;
	if (!buf || fd_read_at(fd, buf, len, *offset) != (ssize_t)len)
		return -EBADMSG;
	*offset += len;
	*ret = take_ptr(&buf);
	*ret_len = len;
	return 0;
}

static int open_ghost(struct ghost_image *ret, int dir_fd, uint32_t number)
{
	auto_free uint8_t *buf = NULL;
	char name[40];
	uint32_t first = 0, second = 0;
	struct stat st;
	size_t len;

	snprintf(name, sizeof(name), "ghost-file-%" PRIx32 ".img", number);
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	*ret = (struct ghost_image){ .fd = -1 };
	if (!S_ISREG(st.st_mode) || read_number(fd, &ret->offset, &first) < 0 ||
	    read_number(fd, &ret->offset, &second) < 0 || first != CRIU_MAGIC_IMAGE ||
	    second != MAGIC_GHOST || read_message(fd, &ret->offset, &buf, &len) < 0)
		return -EBADMSG;
	CriuImage__GhostFile *m = criu_image__ghost_file__unpack(NULL, len, buf);
	if (!m)
		return -EBADMSG;
	ret->has_chunks = m->chunks;
	ret->ghost = (struct criu_ghost){
		.number = number,
		.mode = m->mode,
		.uid = m->uid,
		.gid = m->gid,
		.size_bytes = m->has_size ? m->size : (uint64_t)st.st_size - ret->offset,
	};
	criu_image__ghost_file__free_unpacked(m, NULL);
	ret->fd = take_fd(&fd);
	return 0;
}

static int copy_bytes(int to_fd, uint64_t to, int from_fd, uint64_t from, uint64_t len)
{
	off_t at = (off_t)from;

	if (lseek(to_fd, (off_t)to, SEEK_SET) < 0)
		return -errno;
	while (len) {
		ssize_t n = sendfile(to_fd, from_fd, &at,
				     len < COPY_STEP_BYTES ? (size_t)len : COPY_STEP_BYTES);

		if (n <= 0)
			return n < 0 ? -errno : -EBADMSG;
		len -= (uint64_t)n;
	}
	return 0;
}

static int copy_chunk(struct ghost_image *g, int to_fd)
{
	auto_free uint8_t *buf = NULL;
	size_t len;
	int r = read_message(g->fd, &g->offset, &buf, &len);

	if (r < 0)
		return r;
	CriuImage__GhostChunk *m = criu_image__ghost_chunk__unpack(NULL, len, buf);
	if (!m)
		return -EBADMSG;
	const uint64_t off = m->off, n = m->len;
	criu_image__ghost_chunk__free_unpacked(m, NULL);
	if (off > g->ghost.size_bytes || n > g->ghost.size_bytes - off)
		return -EBADMSG;
	r = copy_bytes(to_fd, off, g->fd, g->offset, n);
	g->offset += n;
	return r;
}

int criu_ghost_copy(int dir_fd, uint32_t number, int to_fd)
{
	struct ghost_image g;
	int r = open_ghost(&g, dir_fd, number);

	if (r < 0)
		return r;
	if (!g.has_chunks)
		r = copy_bytes(to_fd, 0, g.fd, g.offset, g.ghost.size_bytes);
	while (r == 0 && g.has_chunks)
		r = copy_chunk(&g, to_fd);
	close(g.fd);
	if (r < 0 && r != -ENODATA)
		return r;
	return ftruncate(to_fd, (off_t)g.ghost.size_bytes) < 0 ? -errno : 0;
}

/* One that was asked about. */
struct choice {
	uint32_t ghost;
	char *path; /* owned */
	bool is_written, is_taken;
	char key[PATH_MAX];
};

struct choices {
	struct removed removed;
	struct choice *items;
	size_t n;
};

static uint32_t ghost_of(const struct choices *c, uint32_t id)
{
	for (size_t i = 0; i < c->removed.n; i++)
		if (c->removed.items[i].id == id)
			return c->removed.items[i].ghost;
	return 0;
}

static struct choice *find_choice(const struct choices *c, uint32_t ghost)
{
	for (size_t i = 0; ghost && i < c->n; i++)
		if (c->items[i].ghost == ghost)
			return &c->items[i];
	return NULL;
}

/* Finds the path of each ghost, and whether it is written to. */
static int gather(struct choices *c, const CriuImage__File *m)
{
	const CriuImage__RegularFile *f = m->type == TYPE_REGULAR ? m->regular : NULL;
	const uint32_t ghost = f ? ghost_of(c, m->id) : 0;
	struct choice *one = find_choice(c, ghost);

	if (!ghost)
		return 0;
	if (!one) {
		struct choice *more = array_room(c->items, c->n, sizeof(*more));
		char *path = strndup((const char *)f->name.data, f->name.len);

		if (more)
			c->items = more;
		if (!more || !path) {
			free(path);
			return -ENOMEM;
		}
		one = &c->items[c->n++];
		*one = (struct choice){ .ghost = ghost, .path = path };
	}
	one->is_written =
		one->is_written || (!(f->flags & O_PATH) && (f->flags & O_ACCMODE) != O_RDONLY);
	return 0;
}

static int give_ghost(struct choices *c, CriuImage__File *m)
{
	const struct choice *one = find_choice(c, ghost_of(c, m->id));

	if (m->type != TYPE_REGULAR || !m->regular || !one || !one->is_taken)
		return 0;
	uint8_t *key = (uint8_t *)strdup(one->key);
	if (!key)
		return -ENOMEM;
	free(m->regular->name.data);
	m->regular->name = (ProtobufCBinaryData){ strlen(one->key), key };
	m->regular->has_external = m->regular->external = true;
	m->regular->flags &= ~(uint32_t)O_NOFOLLOW; /* as above */
	m->regular->has_mode = false; /* it has a place of its own, where all may read it */
	return 0;
}

/* Goes through files.img; @o: where to it is written, NULL: it is only read. */
static int each_file(struct choices *c, const char *text, size_t len, struct output *o)
{
	struct criu_entries image, entry;
	int r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_FILES);

	while (r >= 0 && (r = criu_entries_next(&image, &entry)) > 0) {
		CriuImage__File *m = criu_image__file__unpack(NULL, entry.left, entry.p);

		if (!m)
			return -EBADMSG;
		r = o ? give_ghost(c, m) : gather(c, m);
		if (r == 0 && o)
			r = put_entry(o, m);
		criu_image__file__free_unpacked(m, NULL);
	}
	return r;
}

static int ask_of_ghosts(struct choices *c, int dir_fd, criu_ghost_fn fn, void *arg)
{
	int r = 0;

	for (size_t i = 0; r >= 0 && i < c->n; i++) {
		struct choice *one = &c->items[i];
		struct ghost_image g;

		r = open_ghost(&g, dir_fd, one->ghost);
		if (r < 0)
			return r;
		close(g.fd);
		g.ghost.path = one->path;
		g.ghost.is_written = one->is_written;
		if (!S_ISREG(g.ghost.mode) && !S_ISDIR(g.ghost.mode))
			continue;
		r = fn(arg, &g.ghost, one->key, sizeof(one->key));
		one->is_taken = r > 0;
	}
	return r < 0 ? r : 0;
}

static int write_remaps(struct choices *c, int dir_fd)
{
	static const char name[] = "remap-fpath.img";
	struct criu_entries image, entry;
	struct output o = { 0 };
	auto_free char *text = NULL;
	size_t len;
	int r = file_read_plain(dir_fd, name, CRIU_IMAGE_BYTES_MAX, &text, &len);

	if (r == 0)
		r = criu_entries_open(&image, text, len, CRIU_MAGIC_IMAGE, CRIU_MAGIC_REMAP_FPATH);
	if (r == 0)
		r = reserve(&o, len);
	if (r == 0) {
		put_number(&o, CRIU_MAGIC_IMAGE);
		put_number(&o, CRIU_MAGIC_REMAP_FPATH);
	}
	for (size_t i = 0; r == 0 && i < c->removed.n && criu_entries_next(&image, &entry) > 0;
	     i++) {
		const struct choice *one = find_choice(c, c->removed.items[i].ghost);

		if (one && one->is_taken)
			continue;
		put_number(&o, (uint32_t)entry.left); /* there is room: it was as long before */
		memcpy(o.buf + o.len, entry.p, entry.left);
		o.len += entry.left;
	}
	if (r == 0)
		r = write_image(dir_fd, name, &o);
	free(o.buf);
	return r;
}

static int take_ghosts(struct choices *c, int dir_fd, const char *text, size_t len)
{
	struct output o = { 0 };
	int r = reserve(&o, len + 2 * NUMBER_BYTES);

	if (r == 0) {
		put_number(&o, CRIU_MAGIC_IMAGE);
		put_number(&o, CRIU_MAGIC_FILES);
		r = each_file(c, text, len, &o);
	}
	if (r == 0)
		r = write_image(dir_fd, "files.img", &o);
	if (r == 0)
		r = write_remaps(c, dir_fd);
	for (size_t i = 0; r == 0 && i < c->n; i++) {
		char name[40];

		snprintf(name, sizeof(name), "ghost-file-%" PRIx32 ".img", c->items[i].ghost);
		if (c->items[i].is_taken)
			unlinkat(dir_fd, name, 0);
	}
	free(o.buf);
	return r;
}

int criu_ghosts_rewrite(int dir_fd, criu_ghost_fn fn, void *arg)
{
	struct choices c = { .n = 0 };
	auto_free char *text = NULL;
	size_t len = 0;
	bool any = false;
	int r = read_removed(&c.removed, dir_fd);

	if (r == 0 && c.removed.n)
		r = file_read_plain(dir_fd, "files.img", CRIU_IMAGE_BYTES_MAX, &text, &len);
	if (r == 0 && text)
		r = each_file(&c, text, len, NULL);
	if (r == 0)
		r = ask_of_ghosts(&c, dir_fd, fn, arg);
	for (size_t i = 0; i < c.n; i++)
		any = any || c.items[i].is_taken;
	if (r == 0 && any)
		r = take_ghosts(&c, dir_fd, text, len);
	for (size_t i = 0; i < c.n; i++)
		free(c.items[i].path);
	free(c.items);
	free(c.removed.items);
	return r;
}
