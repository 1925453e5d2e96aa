// SPDX-License-Identifier: MIT
/*
 * The calls that change files, each carried out and recorded under one lock, so that the order of the
 * records is the order in which they happened. Nodes are found by inode numbers.
 */
#include "recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NO_NODE UINT_MAX

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool on;
static struct record *records;
static size_t n_records, room;
static ino_t *inodes; /* of each node; 0: gone */
static unsigned n_nodes;
static dev_t device;

static void *grow(void *p, size_t n, size_t size)
{
	p = realloc(p, n * size);
	if (!p)
		abort();
	return p;
}

static void add(struct record r)
{
	if (n_records == room) {
		room = room ? 2 * room : 256;
		records = grow(records, room, sizeof(*records));
	}
	records[n_records++] = r;
}

static unsigned add_node(ino_t inode)
{
	for (unsigned i = 0; i < n_nodes; i++)
		if (inodes[i] == inode)
			inodes[i] = 0;
	inodes = grow(inodes, n_nodes + 1, sizeof(*inodes));
	inodes[n_nodes] = inode;
	return n_nodes++;
}

static unsigned node_of(const struct stat *st)
{
	if (!on || st->st_dev != device)
		return NO_NODE;
	for (unsigned i = 0; i < n_nodes; i++)
		if (inodes[i] == st->st_ino)
			return i;
	return NO_NODE;
}

static unsigned node_of_fd(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? node_of(&st) : NO_NODE;
}

/* The directory that @path is in, and its last part (owned) in @ret_name. */
static unsigned parent_of(int dir_fd, const char *path, char **ret_name)
{
	const char *slash = strrchr(path, '/');
	char parent[PATH_MAX] = ".";
	struct stat st;

	if (slash)
		snprintf(parent, sizeof(parent), "%.*s", (int)(slash - path + 1), path);
	*ret_name = strdup(slash ? slash + 1 : path);
	return fstatat(dir_fd, parent, &st, 0) == 0 ? node_of(&st) : NO_NODE;
}

static void add_created(int dir_fd, const char *path, bool is_dir)
{
	struct record r = { .kind = RECORD_CREATE, .is_dir = is_dir };
	struct stat st;

	r.dir = parent_of(dir_fd, path, &r.name);
	if (r.dir == NO_NODE || fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		free(r.name);
		return;
	}
	r.node = add_node(st.st_ino);
	add(r);
}

/* @node takes no more part if this was its last name and nobody has it open. */
static void add_removed(int dir_fd, const char *path)
{
	struct record r = { .kind = RECORD_UNLINK };

	r.dir = parent_of(dir_fd, path, &r.name);
	if (r.dir == NO_NODE)
		free(r.name);
	else
		add(r);
}

static void add_bytes(int fd, const void *buf, ssize_t n, off_t offset)
{
	struct record r = { .kind = RECORD_WRITE, .node = node_of_fd(fd) };

	if (n <= 0 || r.node == NO_NODE)
		return;
	r.offset = (uint64_t)offset;
	r.len_bytes = (uint64_t)n;
	r.data = grow(NULL, (size_t)n, 1);
	memcpy(r.data, buf, (size_t)n);
	add(r);
}

static void add_length(int fd)
{
	struct record r = { .kind = RECORD_LENGTH, .node = node_of_fd(fd) };
	struct stat st;

	if (r.node == NO_NODE || fstat(fd, &st) < 0)
		return;
	r.len_bytes = (uint64_t)st.st_size;
	add(r);
}

void record_mark(const char *fmt, ...)
{
	struct record r = { .kind = RECORD_MARK };
	va_list ap;

	va_start(ap, fmt);
	if (vasprintf(&r.name, fmt, ap) < 0)
		abort();
	va_end(ap);
	pthread_mutex_lock(&lock);
	add(r);
	pthread_mutex_unlock(&lock);
}

void record_start(const char *root)
{
	struct stat st;

	if (stat(root, &st) < 0)
		abort();
	device = st.st_dev;
	add_node(st.st_ino);
	on = true;
}

const struct record *record_stop(size_t *ret_n)
{
	on = false;
	*ret_n = n_records;
	return records;
}

void record_free(void)
{
	for (size_t i = 0; i < n_records; i++) {
		free(records[i].name);
		free(records[i].name2);
		free(records[i].data);
	}
	free(records);
	free(inodes);
	records = NULL;
	inodes = NULL;
	n_records = room = n_nodes = 0;
}

/* Defines the replacement of a call: under the lock it calls the real one, and records if that did not
 * fail. @then sees @r, the result. */
#define WRAP(type, name, parameters, arguments, then) \
	type __real_##name parameters;                \
	type __wrap_##name parameters;                \
	type __wrap_##name parameters                 \
	{                                             \
		pthread_mutex_lock(&lock);            \
		type r = __real_##name arguments;     \
		int code = errno;                     \
		if (r >= 0)                           \
			then;                         \
		pthread_mutex_unlock(&lock);          \
		errno = code;                         \
		return r;                             \
	}

#define WRAP_OPENAT(name)                                                                         \
	int __real_##name(int dir_fd, const char *path, int flags, ...);                          \
	int __wrap_##name(int dir_fd, const char *path, int flags, ...);                          \
	int __wrap_##name(int dir_fd, const char *path, int flags, ...)                           \
	{                                                                                         \
		mode_t mode = 0;                                                                  \
		va_list ap;                                                                       \
		struct stat st;                                                                   \
                                                                                                  \
		va_start(ap, flags);                                                              \
		if (flags & O_CREAT)                                                              \
			mode = va_arg(ap, mode_t);                                                \
		va_end(ap);                                                                       \
		pthread_mutex_lock(&lock);                                                        \
		bool is_new =                                                                     \
			(flags & O_CREAT) && fstatat(dir_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0; \
		int fd = __real_##name(dir_fd, path, flags, mode);                                \
		int code = errno;                                                                 \
		if (fd >= 0 && is_new)                                                            \
			add_created(dir_fd, path, false);                                         \
		else if (fd >= 0 && (flags & O_TRUNC))                                            \
			add_length(fd);                                                           \
		pthread_mutex_unlock(&lock);                                                      \
		errno = code;                                                                     \
		return fd;                                                                        \
	}
WRAP_OPENAT(openat)
WRAP_OPENAT(openat64)

static void add_synced(int fd)
{
	unsigned node = node_of_fd(fd);

	if (node != NO_NODE)
		add((struct record){ .kind = RECORD_SYNC, .node = node });
}

static void add_renamed(int dir_fd, const char *from, int dir_fd2, const char *to)
{
	struct record r = { .kind = RECORD_RENAME };

	r.dir = parent_of(dir_fd, from, &r.name);
	r.dir2 = parent_of(dir_fd2, to, &r.name2);
	if (r.dir != NO_NODE && r.dir2 != NO_NODE) {
		add(r);
		return;
	}
	free(r.name);
	free(r.name2);
}

static void add_linked(int dir_fd, const char *to)
{
	struct record r = { .kind = RECORD_LINK };
	struct stat st;

	r.dir = parent_of(dir_fd, to, &r.name);
	r.node = fstatat(dir_fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0 ? node_of(&st) : NO_NODE;
	if (r.dir != NO_NODE && r.node != NO_NODE)
		add(r);
	else
		free(r.name);
}

WRAP(ssize_t, write, (int fd, const void *buf, size_t n), (fd, buf, n),
     add_bytes(fd, buf, r, lseek(fd, 0, SEEK_CUR) - r))
WRAP(ssize_t, pwrite, (int fd, const void *buf, size_t n, off_t at), (fd, buf, n, at),
     add_bytes(fd, buf, r, at))
WRAP(ssize_t, pwrite64, (int fd, const void *buf, size_t n, off_t at), (fd, buf, n, at),
     add_bytes(fd, buf, r, at))
WRAP(int, ftruncate, (int fd, off_t len), (fd, len), add_length(fd))
WRAP(int, ftruncate64, (int fd, off_t len), (fd, len), add_length(fd))
WRAP(int, fallocate, (int fd, int mode, off_t at, off_t len), (fd, mode, at, len), add_length(fd))
WRAP(int, fallocate64, (int fd, int mode, off_t at, off_t len), (fd, mode, at, len), add_length(fd))
WRAP(int, fsync, (int fd), (fd), add_synced(fd))
WRAP(int, fdatasync, (int fd), (fd), add_synced(fd))
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), add_created(AT_FDCWD, path, true))
WRAP(int, mkdirat, (int dir_fd, const char *path, mode_t mode), (dir_fd, path, mode),
     add_created(dir_fd, path, true))
WRAP(int, unlink, (const char *path), (path), add_removed(AT_FDCWD, path))
WRAP(int, rmdir, (const char *path), (path), add_removed(AT_FDCWD, path))
WRAP(int, unlinkat, (int dir_fd, const char *path, int flags), (dir_fd, path, flags),
     add_removed(dir_fd, path))
WRAP(int, rename, (const char *from, const char *to), (from, to),
     add_renamed(AT_FDCWD, from, AT_FDCWD, to))
WRAP(int, renameat, (int dir_fd, const char *from, int dir_fd2, const char *to),
     (dir_fd, from, dir_fd2, to), add_renamed(dir_fd, from, dir_fd2, to))
WRAP(int, renameat2, (int dir_fd, const char *from, int dir_fd2, const char *to, unsigned flags),
     (dir_fd, from, dir_fd2, to, flags), add_renamed(dir_fd, from, dir_fd2, to))
WRAP(int, link, (const char *from, const char *to), (from, to), add_linked(AT_FDCWD, to))
WRAP(int, linkat, (int dir_fd, const char *from, int dir_fd2, const char *to, int flags),
     (dir_fd, from, dir_fd2, to, flags), add_linked(dir_fd2, to))
