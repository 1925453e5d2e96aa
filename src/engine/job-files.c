// SPDX-License-Identifier: MIT
/* The record of a job's files, and what they hold; see job-files.h. */
#include "engine/job-files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fd.h"
#include "base/schema.h"
#include "wire/wire.h"

enum { RECORD_VERSION = 1, AGAIN_MAX = 16, BUFFER_BYTES = 1 << 20, COPY_STEP_BYTES = 1 << 30 };

/* A job stands still while its files are read: of what is longer, as many samples, the first and the last bytes among them. */
enum { WHOLE_BYTES_MAX = 32 << 20, SAMPLE_BYTES = 256 << 10, N_SAMPLES = 64 };

void job_files_fini(struct job_files *f)
{
	for (size_t i = 0; i < f->n; i++) {
		free(f->items[i].path);
		cleanup_close(&f->items[i].seen.fd);
	}
	free(f->items);
	*f = JOB_FILES_EMPTY;
}

struct job_file *job_files_add(struct job_files *f, const char *path)
{
	struct job_file *items = array_room(f->items, f->n, sizeof(*items));

	if (!items)
		return NULL;
	f->items = items;
	items[f->n] = (struct job_file){ .path = strdup(path), .seen.fd = -1 };
	return items[f->n].path ? &items[f->n++] : NULL;
}

/* ---- the record ---- */

static const char *const kinds[] = { [JOB_FILE_WRITTEN] = "written",
				     [JOB_FILE_MEMORY] = "memory",
				     [JOB_FILE_REMOVED] = "removed",
				     [JOB_FILE_REMOVED_DIR] = "removed-directory" };

#define ID(key, member) NUMBER(struct job_file, key, member, FIELD_U64, INT64_MIN, INT64_MAX)

static const struct schema_field file_fields[] = {
	WORD(struct job_file, kind, kinds),
	FIELD(struct job_file, "path", path, FIELD_STRING, .max = PATH_MAX - 1),
	NUMBER(struct job_file, "size", size_bytes, FIELD_U64, 0, INT64_MAX),
	ID("mtime_ns", mtime_ns),
	ID("device", device),
	ID("inode", inode),
	NUMBER(struct job_file, "mode", mode, FIELD_U32, 0, 07777),
	NUMBER(struct job_file, "uid", uid, FIELD_U32, 0, UINT32_MAX),
	NUMBER(struct job_file, "gid", gid, FIELD_U32, 0, UINT32_MAX),
	FIELD(struct job_file, "in_sequence", in_sequence, FIELD_BOOL, .lenient = true),
	FIELD(struct job_file, "mapped", is_mapped, FIELD_BOOL, .lenient = true),
	FIELD(struct job_file, "written", is_written, FIELD_BOOL, .optional = true),
	FIELD(struct job_file, "digest", digest, FIELD_DIGEST, .optional = true,
	      .given_offset = offsetof(struct job_file, has_digest)),
	FIELD(struct job_file, "samples", has_samples, FIELD_BOOL, .optional = true,
	      .given_offset = offsetof(struct job_file, has_digest)),
	LINE(struct job_file, "key", key, .optional = true),
	LINE(struct job_file, "copy", copy, .optional = true),
};

static const struct schema_field record_fields[] = {
	LIST(struct job_files, "files", items, n, file_fields, JOB_FILES_MAX),
};

char *job_files_encode(const struct job_files *f)
{
	auto_json json_t *o = json_pack("{s:i}", "version", RECORD_VERSION);

	return o && schema_encode(o, record_fields, N_OF(record_fields), f, 0) == 0
		       ? json_dumps(o, JSON_COMPACT)
		       : NULL;
}

static bool is_copy_name(const char *name)
{
	const char *number = name + strlen(JOB_FILES_COPY);

	return !strncmp(name, JOB_FILES_COPY, strlen(JOB_FILES_COPY)) && *number &&
	       strspn(number, "0123456789") == strlen(number);
}

/* Whether its members go together. */
static bool is_sound(const struct job_file *f)
{
	const bool is_removed = f->kind == JOB_FILE_REMOVED;

	if (*f->path != '/' || (*f->copy && !is_copy_name(f->copy)))
		return false;
	if (!*f->copy && (f->kind == JOB_FILE_MEMORY || is_removed))
		return false;
	return !is_removed || f->is_written || f->has_digest; /* it is kept under its digest */
}

static int decode_all(struct job_files *ret, json_t *o, struct brumate_error *err)
{
	int64_t version = 0;
	int r = wire_get_int(o, "version", 0, INT64_MAX, &version, err);

	if (r < 0)
		return r;
	if (version != RECORD_VERSION)
		return brumate_fail(err, EPROTONOSUPPORT,
				    "%s: version %" PRId64 ", this brumate knows %d",
				    JOB_FILES_RECORD, version, RECORD_VERSION);
	r = schema_decode(record_fields, N_OF(record_fields), ret, o, 0, err);
	for (size_t i = 0; i < ret->n; i++)
		ret->items[i].seen.fd = -1;
	for (size_t i = 0; r == 0 && i < ret->n; i++)
		if (!is_sound(&ret->items[i]))
			r = -EBADMSG;
	return r;
}

int job_files_decode(struct job_files *ret, const char *text, size_t len_bytes,
		     struct brumate_error *err)
{
	auto_(job_files_fini) struct job_files files = JOB_FILES_EMPTY;
	auto_json json_t *o = json_loadb(text, len_bytes, JSON_REJECT_DUPLICATES, NULL);
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = json_is_object(o) ? decode_all(&files, o, &why) : -EBADMSG;

	if (r == -EPROTONOSUPPORT || r == -ENOMEM) {
		if (err)
			*err = why;
		return r == -ENOMEM ? brumate_fail(err, ENOMEM, "%m") : r;
	}
	if (r < 0)
		return brumate_fail(err, EBADMSG, "%s: is damaged%s%s", JOB_FILES_RECORD,
				    why.code ? ": " : "", why.code ? why.text : "");
	*ret = take_struct(files, JOB_FILES_EMPTY);
	return 0;
}

/* ---- what a file holds ---- */

bool job_file_is_long(uint64_t size_bytes)
{
	return size_bytes > WHOLE_BYTES_MAX;
}

int job_file_digest_add(struct digest_run *run, int fd, uint64_t offset, uint64_t len)
{
	auto_free uint8_t *buf = malloc(BUFFER_BYTES);
	int r = buf ? 0 : -ENOMEM;

	while (r == 0 && len) {
		size_t step = len < BUFFER_BYTES ? (size_t)len : BUFFER_BYTES;
		ssize_t n = fd_read_at(fd, buf, step, offset);

		if (n < 0 || (size_t)n < step)
			return n < 0 ? (int)n : -ENODATA;
		r = digest_add(run, buf, step);
		offset += step;
		len -= step;
	}
	return r;
}

static int add_samples(struct digest_run *run, int fd, uint64_t size)
{
	const uint64_t last = size - SAMPLE_BYTES;
	int r = 0;

	for (uint64_t i = 0; r == 0 && i < N_SAMPLES; i++)
		r = job_file_digest_add(run, fd, last / (N_SAMPLES - 1) * i, SAMPLE_BYTES);
	return r < 0 ? r : job_file_digest_add(run, fd, last, SAMPLE_BYTES);
}

int job_file_digest(struct digest *ret, bool of_samples, int fd, uint64_t size_bytes)
{
	auto_(digest_run_free) struct digest_run *run = NULL;
	int r = digest_begin(&run);

	if (r == 0)
		r = of_samples && job_file_is_long(size_bytes)
			    ? add_samples(run, fd, size_bytes)
			    : job_file_digest_add(run, fd, 0, size_bytes);
	return r < 0 ? r : digest_take(run, ret);
}

/* sendfile(2) refuses a place in @from_fd that a file could not have on the file system of @to_fd. */
static ssize_t copy_step(int to_fd, int from_fd, off_t *from, size_t len)
{
	char buf[1 << 16];
	ssize_t n = sendfile(to_fd, from_fd, from, len);

	if (n >= 0 || errno != EOVERFLOW)
		return n;
	n = pread(from_fd, buf, len < sizeof(buf) ? len : sizeof(buf), *from);
	if (n <= 0)
		return n;
	int r = fd_write_full(to_fd, buf, (size_t)n);
	if (r < 0) {
		errno = -r;
		return -1;
	}
	*from += n;
	return n;
}

static int copy_run(int to_fd, uint64_t to_offset, int from_fd, uint64_t from_offset, uint64_t len)
{
	off_t from = (off_t)from_offset;

	if (lseek(to_fd, (off_t)to_offset, SEEK_SET) < 0)
		return -errno;
	while (len) {
		ssize_t n = copy_step(to_fd, from_fd, &from,
				      len < COPY_STEP_BYTES ? (size_t)len : COPY_STEP_BYTES);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENODATA;
		len -= (uint64_t)n;
	}
	return 0;
}

int job_file_copy_to(int to_fd, uint64_t to_offset, int from_fd, uint64_t from_offset,
		     uint64_t len_bytes)
{
	const uint64_t end = from_offset + len_bytes;
	uint64_t at = from_offset;

	while (at < end) {
		off_t data = lseek(from_fd, (off_t)at, SEEK_DATA);
		if (data < 0 && errno == ENXIO) /* nothing more */
			break;
		if (data < 0)
			data = (off_t)at;
		off_t hole = lseek(from_fd, data, SEEK_HOLE);
		uint64_t from = (uint64_t)data, to = hole < 0 ? end : (uint64_t)hole;
		if (from >= end)
			break;
		to = to < end ? to : end;
		int r = copy_run(to_fd, to_offset + from - from_offset, from_fd, from, to - from);
		if (r < 0)
			return r;
		at = to;
	}
	return 0;
}

int job_file_copy(int to_fd, int from_fd, uint64_t from_offset, uint64_t len_bytes)
{
	int r = 0;

	/* The same blocks, where the file system can do that. */
	if (from_offset || ioctl(to_fd, FICLONE, from_fd) < 0)
		r = job_file_copy_to(to_fd, 0, from_fd, from_offset, len_bytes);
	if (r == 0 && ftruncate(to_fd, (off_t)len_bytes) < 0)
		r = -errno;
	return r;
}

int job_file_open(int root_fd, const char *path, int flags)
{
	struct open_how how = {
		.flags = (unsigned)flags | O_CLOEXEC | O_NOFOLLOW,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};

	if (!(flags & O_PATH))
		how.flags |= O_NOCTTY | O_NONBLOCK;
	path += strspn(path, "/");
	/* EAGAIN: something was renamed meanwhile. */
	for (int i = 0; i < AGAIN_MAX; i++) {
		long fd = syscall(SYS_openat2, root_fd, *path ? path : ".", &how, sizeof(how));

		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
	}
	return -EAGAIN;
}
