// SPDX-License-Identifier: MIT
/* Writing a checkpoint as a stream: every file is read once, and hashed while it is written. */
#include "store/ahead.h"
#include "chunks/files.h"
#include "store/image.h"
#include "chunks/reader.h"
#include "store/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/fd.h"

struct export
{
	const struct store_image *image;
	store_write_fn write;
	void *write_arg;
	store_progress_fn progress;
	void *progress_arg;
	uint64_t done_bytes, total_bytes;
	struct digest_run *digest;
	struct pack_check *packs; /* for packs; NULL while files are put */
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
	auto_(ahead_free) struct ahead *ahead = NULL;
	uint64_t left = len_bytes;
	int r = left ? ahead_start(&ahead, fd) : 0;

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path);
	while (left) {
		const void *buf;
		ssize_t n = ahead_next(ahead, &buf);

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

/* Every chunk is compared while it passes. */
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
