// SPDX-License-Identifier: MIT
/*
 * A checkpoint as a stream. For writing one, every file is read once, and hashed at the same time. For making a
 * checkpoint from one, the decoder checks every path against the manifest's rules and every byte against its digests
 * before a file counts; nothing is visible before everything has arrived.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fd.h"
#include "chunks/files.h"
#include "chunks/reader.h"
#include "store/file-tree.h"
#include "store/authentic.h"
#include "store/image.h"
#include "store/store.h"
#include "store/stream.h"

struct export
{
	const struct store_image *image;
	store_write_fn write;
	void *write_arg;
	store_progress_fn progress;
	void *progress_arg;
	uint64_t done_bytes, total_bytes;
	struct digest_run *digest;
	struct pack_check *packs; /* for packs; NULL while files are written */
};

static int put(struct export *e, const void *buf, size_t len, struct brumate_error *err)
{
	int r = len ? e->write(e->write_arg, buf, len) : 0;

	return r < 0 ? brumate_fail(err, -r, "the stream cannot be written: %m") : 0;
}

static int put_header(struct export *e, const char *path, uint64_t len, struct brumate_error *err)
{
	uint8_t header[STREAM_HEADER_BYTES_MAX];
	size_t n = stream_header(header, e->image->manifest.id, path, len);

	return put(e, header, n, err);
}

static int put_zeros(struct export *e, size_t n, struct brumate_error *err)
{
	static const uint8_t zeros[STREAM_END_BYTES];

	return put(e, zeros, n, err);
}

static int put_manifest(struct export *e, struct brumate_error *err)
{
	auto_free char *text = NULL;
	auto_close int fd = files_open(e->image->dir_fd, STORE_MANIFEST_NAME, NULL);
	if (fd < 0)
		return brumate_fail(err, -fd, STORE_MANIFEST_NAME ": %m");

	text = malloc(MANIFEST_BYTES_MAX);
	if (!text)
		return brumate_fail(err, ENOMEM, "%m");
	ssize_t n = fd_read_full(fd, text, MANIFEST_BYTES_MAX);
	if (n < 0)
		return brumate_fail(err, (int)-n, STORE_MANIFEST_NAME ": %m");
	int r = put_header(e, STORE_MANIFEST_NAME, (uint64_t)n, err);
	if (r == 0)
		r = put(e, text, (size_t)n, err);
	return r < 0 ? r : put_zeros(e, stream_padding((uint64_t)n), err);
}

static int put_some(struct export *e, const void *buf, size_t n, struct brumate_error *err)
{
	int r = e->packs ? pack_check_feed(e->packs, buf, n, err) : digest_add(e->digest, buf, n);

	if (r < 0)
		return e->packs ? r : brumate_fail(err, -r, "%m");
	if ((r = put(e, buf, n, err)) < 0)
		return r;
	e->done_bytes += n;
	r = e->progress ? e->progress(e->progress_arg, e->done_bytes, e->total_bytes) : 0;
	return r < 0 ? brumate_fail(err, -r, "stopped: %m") : 0;
}

static int put_data(struct export *e, const char *path, uint64_t len_bytes, int fd,
		    struct brumate_error *err)
{
	enum { STEP_BYTES = 2 << 20 };
	auto_free char *buf = malloc(STEP_BYTES);
	uint64_t left = len_bytes;
	int r;

	if (!buf)
		return brumate_fail(err, ENOMEM, "%m");
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	while (left) {
		ssize_t n = fd_read_at(fd, buf, STEP_BYTES, len_bytes - left);

		if (n < 0)
			return brumate_fail(err, (int)-n, "%s: %m", path);
		if (n == 0 || (uint64_t)n > left)
			return brumate_fail(err, EBUSY, "%s: changed while it was read", path);
		if ((r = put_some(e, buf, (size_t)n, err)) < 0)
			return r;
		left -= (uint64_t)n;
	}
	return 0;
}

/* The header and the bytes, without the padding. */
static int put_body(struct export *e, const char *path, uint64_t len_bytes,
		    struct brumate_error *err)
{
	struct stat st;
	auto_close int fd = files_open(e->image->dir_fd, path, &st);
	if (fd < 0)
		return brumate_fail(err, fd == -ENOENT ? EBADMSG : -fd, "%s: %s", path,
				    fd == -ENOENT ? "missing" : strerror(-fd));

	if ((uint64_t)st.st_size != len_bytes)
		return brumate_fail(err, EBADMSG, "%s: %jd of %" PRIu64 " bytes", path,
				    (intmax_t)st.st_size, len_bytes);
	int r = put_header(e, path, len_bytes, err);
	return r < 0 ? r : put_data(e, path, len_bytes, fd, err);
}

static int put_file(struct export *e, const struct manifest_file *f, struct brumate_error *err)
{
	struct digest digest;
	int r = put_body(e, f->path, f->len_bytes, err);

	if (r < 0)
		return r;
	if ((r = digest_take(e->digest, &digest)) < 0)
		return brumate_fail(err, -r, "%m");
	if (memcmp(&digest, &f->digest, sizeof(digest)))
		return brumate_fail(err, EBADMSG, "%s: damaged: its digest does not match",
				    f->path);
	return put_zeros(e, stream_padding(f->len_bytes), err);
}

/* Compares every chunk as it passes. */
static int put_packs(struct export *e, struct brumate_error *err)
{
	auto_(pack_check_free) struct pack_check *check = NULL;
	const struct manifest *m = &e->image->manifest;
	int r = m->memory.n_packs ? pack_check_new(&check, e->image->dir_fd, m, err) : 0;

	e->packs = check;
	for (size_t i = 0; r == 0 && i < m->memory.n_packs; i++) {
		const struct manifest_pack *p = &m->memory.packs[i];

		pack_check_begin(check, i);
		r = put_body(e, p->path, p->len_bytes, err);
		if (r == 0)
			r = put_zeros(e, stream_padding(p->len_bytes), err);
	}
	e->packs = NULL;
	return r;
}

static int put_all(struct export *e, struct brumate_error *err)
{
	const struct manifest *m = &e->image->manifest;
	int r = put_manifest(e, err);

	for (size_t i = 0; r == 0 && i < m->n_files; i++)
		r = put_file(e, &m->files[i], err);
	if (r == 0)
		r = put_packs(e, err);
	return r < 0 ? r : put_zeros(e, STREAM_END_BYTES, err);
}

int store_export(const struct store_image *i, store_write_fn write, void *write_arg,
		 store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(digest_run_free) struct digest_run *digest = NULL;
	struct export e = {
		.image = i,
		.write = write,
		.write_arg = write_arg,
		.progress = progress,
		.progress_arg = arg,
		.total_bytes = manifest_bytes(&i->manifest),
	};

	if (image_hold(i) < 0)
		return brumate_fail(err, EBUSY, "checkpoint %s: it is being removed",
				    i->manifest.id);
	int r = digest_begin(&digest);
	if (r < 0)
		return brumate_fail(err, -r, "%m");
	e.digest = digest;
	r = put_all(&e, err);
	return r < 0 ? brumate_wrap(err, r, "checkpoint %s", i->manifest.id) : 0;
}

/* ---- making a checkpoint from a stream ---- */

enum { READ_BYTES = 1 << 20 };

struct import {
	const char *dir;
	const struct authority *authority;
	struct store_writer writer;
	const struct manifest *manifest;
	const char *text; /* of the manifest; borrowed from the decoder */
	size_t text_len;
	int fd;			  /* of the current file */
	struct pack_check *packs; /* from the first pack on */
	bool in_pack;
	store_progress_fn progress;
	void *progress_arg;
	uint64_t done_bytes, total_bytes;
};

static int on_manifest(void *arg, const struct manifest *manifest, const char *text, size_t len,
		       struct brumate_error *err)
{
	struct import *m = arg;

	m->manifest = manifest;
	m->text = text;
	m->text_len = len;
	int r = authentic_check(manifest, m->authority, err);
	if (r == 0)
		r = store_check_space(m->dir, manifest, false, &m->total_bytes, err);
	return r < 0 ? r : store_begin(&m->writer, m->dir, manifest->id, err);
}

static int fail_path(const struct stream_file *f, int r, const struct import *m,
		     struct brumate_error *err)
{
	/* Names that collide or are too deep are errors of the manifest, others of the disk. */
	if (r == -EEXIST || r == -ENOTDIR || r == -EISDIR || r == -ELOOP)
		return brumate_fail(err, EBADMSG, "%s: its path collides with another", f->path);
	files_fail(err, -r, m->writer.path, "write");
	return brumate_wrap(err, r, "%s", f->path);
}

/* Creates the file with the directories above it. The directory is ours alone. */
static int create(const struct import *m, const struct stream_file *f)
{
	auto_free char *path = strdup(f->path);
	const char *base = NULL;
	auto_close int dir_fd = path ? store_enter_parents(m->writer.dir_fd, path, &base) : -ENOMEM;

	if (dir_fd < 0)
		return dir_fd;
	int fd = openat(dir_fd, base, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* The table came before the packs, and its digest was correct. */
static int begin_pack(struct import *m, size_t index, struct brumate_error *err)
{
	int r = m->packs ? 0 : pack_check_new(&m->packs, m->writer.dir_fd, m->manifest, err);

	if (r == 0)
		pack_check_begin(m->packs, index);
	return r;
}

static int on_begin(void *arg, const struct stream_file *f, struct brumate_error *err)
{
	struct import *m = arg;
	int fd = create(m, f);

	if (fd < 0)
		return fail_path(f, fd, m, err);
	m->fd = fd;
	m->in_pack = f->pack;
	return f->pack ? begin_pack(m, f->index, err) : 0;
}

static int on_data(void *arg, const void *buf, size_t len, struct brumate_error *err)
{
	struct import *m = arg;
	int r = m->in_pack ? pack_check_feed(m->packs, buf, len, err) : 0;

	if (r < 0)
		return r;
	r = fd_write_full(m->fd, buf, len);
	if (r < 0)
		return files_fail(err, -r, m->writer.path, "write");
	m->done_bytes += len;
	r = m->progress ? m->progress(m->progress_arg, m->done_bytes, m->total_bytes) : 0;
	return r < 0 ? brumate_fail(err, -r, "stopped: %m") : 0;
}

static int on_end(void *arg, const struct stream_file *f, struct brumate_error *err)
{
	struct import *m = arg;
	int r = files_sync(m->fd, "store.sync-file");

	cleanup_close(&m->fd);
	return r < 0 ? fail_path(f, r, m, err) : 0;
}

static const struct stream_sink sink = { on_manifest, on_begin, on_data, on_end };

static int decode_all(struct stream_decoder *d, store_read_fn read_some, void *read_arg,
		      struct brumate_error *err)
{
	auto_free void *buf = malloc(READ_BYTES);

	if (!buf)
		return brumate_fail(err, ENOMEM, "%m");
	for (;;) {
		ssize_t n = read_some(read_arg, buf, READ_BYTES);

		if (n < 0)
			return brumate_fail(err, (int)-n, "the stream cannot be read: %m");
		if (n == 0)
			return stream_decode_end(d, err);
		int r = stream_decode(d, buf, (size_t)n, err);
		if (r < 0)
			return r;
	}
}

int store_import(char ret_id[static MANIFEST_ID_BYTES], const char *dir,
		 const struct authority *authority, store_read_fn read, void *read_arg,
		 store_progress_fn progress, void *arg, struct brumate_error *err)
{
	auto_(stream_decoder_free) struct stream_decoder *d = NULL;
	struct import m = {
		.dir = dir,
		.authority = authority,
		.writer = STORE_WRITER_EMPTY,
		.fd = -1,
		.progress = progress,
		.progress_arg = arg,
	};
	int r = stream_decoder_new(&d, &sink, &m);

	if (r < 0)
		return brumate_fail(err, -r, "%m");
	r = decode_all(d, read, read_arg, err);
	if (r < 0 && m.writer.path)
		brumate_wrap(err, r, "checkpoint %s", m.manifest->id);
	if (r == 0)
		r = store_commit_as(&m.writer, m.manifest, m.text, m.text_len, err);
	if (r == 0)
		memcpy(ret_id, m.manifest->id, MANIFEST_ID_BYTES);
	cleanup_close(&m.fd);
	pack_check_free(m.packs);
	store_abort(&m.writer);
	return r;
}
