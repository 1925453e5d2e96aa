// SPDX-License-Identifier: MIT
/* Checkpoints of containers in one file; see archive.h. The input is untrusted: its names cannot lead to other
 * places. */
#include "edges/containers/archive.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/tar.h"

#define ABOUT  "brumate.json"
#define IMAGES "checkpoint/"

enum { COPY_BYTES = 1 << 20, TEXT_BYTES_MAX = 16 << 20, LEVELS_MAX = 4 };

/* ---- writing ---- */

static int write_header(int fd, const char *name, char type, uint64_t len_bytes)
{
	struct tar_header h;

	tar_fill(&h, name, type, len_bytes);
	return fd_write_full(fd, &h, sizeof(h));
}

static int write_padding(int fd, uint64_t len_bytes)
{
	static const char zeros[TAR_BLOCK_BYTES];

	return fd_write_full(fd, zeros, tar_padding(len_bytes));
}

static int write_text(int fd, const struct archive_text *t)
{
	int r = write_header(fd, t->name, TAR_FILE, t->len_bytes);

	if (r == 0)
		r = fd_write_full(fd, t->text, t->len_bytes);
	return r < 0 ? r : write_padding(fd, t->len_bytes);
}

/* Copies exactly @len_bytes; -EIO if there are fewer. */
static int copy_bytes(int to, int from, uint64_t len_bytes)
{
	auto_free char *buf = malloc(COPY_BYTES);

	if (!buf)
		return -ENOMEM;
	while (len_bytes) {
		size_t part = len_bytes < COPY_BYTES ? (size_t)len_bytes : COPY_BYTES;
		ssize_t n = fd_read_full(from, buf, part);
		int r = n < 0 ? (int)n : (size_t)n < part ? -EIO : fd_write_full(to, buf, part);

		if (r < 0)
			return r;
		len_bytes -= part;
	}
	return 0;
}

static int write_file(int fd, int from, uint64_t len_bytes, const char *name)
{
	int r = write_header(fd, name, TAR_FILE, len_bytes);

	if (r == 0)
		r = copy_bytes(fd, from, len_bytes);
	return r < 0 ? r : write_padding(fd, len_bytes);
}

/* Writes the files of @dir_fd, which is taken, with the names @prefix…, which ends with a slash. CRIU's images are in
 * one directory, device memory of the data path in one below it. */
static int write_tree(int fd, int dir_fd, const char *prefix, int level)
{
	auto_closedir DIR *dir = fdopendir(dir_fd);
	struct dirent *entry;
	int r;

	if (!dir) {
		r = -errno;
		close(dir_fd);
		return r;
	}
	r = write_header(fd, prefix, TAR_DIRECTORY, 0);
	while (r == 0 && (r = dir_next(dir, &entry)) > 0) {
		char name[TAR_NAME_BYTES];
		struct stat st;
		auto_close int from =
			openat(dirfd(dir), entry->d_name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

		if (from < 0 || fstat(from, &st) < 0)
			return -errno;
		bool is_dir = S_ISDIR(st.st_mode);
		if (snprintf(name, sizeof(name), "%s%s%s", prefix, entry->d_name,
			     is_dir ? "/" : "") >= (int)sizeof(name))
			return -ENAMETOOLONG;
		if (!is_dir && !S_ISREG(st.st_mode))
			return -EINVAL;
		r = !is_dir		 ? write_file(fd, from, (uint64_t)st.st_size, name)
		    : level < LEVELS_MAX ? write_tree(fd, take_fd(&from), name, level + 1)
					 : -ELOOP;
	}
	return r;
}

static int write_images(int fd, const char *images_dir, struct brumate_error *err)
{
	int dir_fd = open(images_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = dir_fd < 0 ? -errno : write_tree(fd, dir_fd, IMAGES, 0);

	return r < 0 ? brumate_fail(err, -r, "%s: %s", images_dir, strerror(-r)) : 0;
}

int archive_write(const char *path, const struct archive_text *texts, size_t n_texts,
		  const char *images_dir, struct brumate_error *err)
{
	static const char end[2 * TAR_BLOCK_BYTES];
	auto_close int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int r = fd < 0 ? -errno : 0;

	for (size_t i = 0; i < n_texts && r == 0; i++)
		r = write_text(fd, &texts[i]);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %s", path, strerror(-r));
	r = write_images(fd, images_dir, err);
	if (r < 0)
		return r;
	r = fd_write_full(fd, end, sizeof(end));
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	return r < 0 ? brumate_fail(err, -r, "%s: %s", path, strerror(-r)) : 0;
}

/* ---- reading ---- */

static int fail_damaged(const char *path, struct brumate_error *err)
{
	return brumate_fail(err, EBADMSG, "%s: damaged: not the archive of a container", path);
}

/* The next header. 1; 0: the end; -EBADMSG, -errno. */
static int next_header(int fd, char name[static TAR_NAME_BYTES + 1], uint64_t *ret_len_bytes)
{
	struct tar_header h;
	ssize_t n = fd_read_full(fd, &h, sizeof(h));

	if (n < 0)
		return (int)n;
	return (size_t)n < sizeof(h) ? -EBADMSG : tar_parse(name, ret_len_bytes, &h);
}

static int skip_bytes(int fd, uint64_t len_bytes)
{
	return lseek(fd, (off_t)len_bytes, SEEK_CUR) < 0 ? -errno : 0;
}

int archive_about(json_t **ret, const char *path, struct brumate_error *err)
{
	char name[TAR_NAME_BYTES + 1];
	uint64_t len_bytes;
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return brumate_fail(err, errno, "%s: %m", path);
	if (next_header(fd, name, &len_bytes) <= 0 || strcmp(name, ABOUT) != 0)
		return 0;
	auto_free char *text = len_bytes <= TEXT_BYTES_MAX ? malloc((size_t)len_bytes) : NULL;
	if (!text || fd_read_full(fd, text, (size_t)len_bytes) != (ssize_t)len_bytes)
		return fail_damaged(path, err);
	json_t *about = json_loadb(text, (size_t)len_bytes, JSON_REJECT_DUPLICATES, NULL);
	if (!json_is_object(about)) {
		json_decref(about);
		return fail_damaged(path, err);
	}
	*ret = about;
	return 1;
}

/* Whether it leads to a place below the directory: no part of it is empty, "." or "..". */
static bool leads_below(const char *name)
{
	while (*name) {
		size_t len = strcspn(name, "/");

		if (!len || (len == 1 && *name == '.') || (len == 2 && !strncmp(name, "..", 2)))
			return false;
		name += len + (name[len] == '/');
	}
	return true;
}

/* Links are never unpacked, so that names lead where they say. */
static int unpack_file(int fd, int dir_fd, const char *name, uint64_t len_bytes)
{
	if (strncmp(name, IMAGES, strlen(IMAGES)) != 0)
		return skip_bytes(fd, len_bytes + tar_padding(len_bytes));
	name += strlen(IMAGES);
	const size_t len = strlen(name);
	bool is_dir = len && name[len - 1] == '/';
	if (!len) /* the directory itself; it has no data */
		return len_bytes ? -EBADMSG : 0;
	if (!leads_below(name) || (is_dir && len_bytes))
		return -EBADMSG;
	if (is_dir)
		return mkdirat(dir_fd, name, 0700) < 0 ? -errno : 0;
	auto_close int to =
		openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	int r = to < 0 ? -errno : copy_bytes(to, fd, len_bytes);
	return r < 0 ? r : skip_bytes(fd, tar_padding(len_bytes));
}

int archive_unpack(const char *path, const char *images_dir, struct brumate_error *err)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC);
	auto_close int dir_fd = open(images_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	char name[TAR_NAME_BYTES + 1];
	uint64_t len_bytes;
	int r;

	if (fd < 0 || dir_fd < 0)
		return brumate_fail(err, errno, "%s: %m", fd < 0 ? path : images_dir);
	while ((r = next_header(fd, name, &len_bytes)) > 0) {
		r = unpack_file(fd, dir_fd, name, len_bytes);
		if (r < 0)
			break;
	}
	if (r == -EBADMSG || r == -EIO || r == -EEXIST || r == -ENOENT)
		return fail_damaged(path, err);
	return r < 0 ? brumate_fail(err, -r, "%s: %s", path, strerror(-r)) : 0;
}
