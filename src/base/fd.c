// SPDX-License-Identifier: MIT
/* See fd.h. */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

/* @offset: NULL: from the file's own position on. */
static ssize_t read_all(int fd, char *buf, size_t len_bytes, const uint64_t *offset)
{
	size_t done = 0;

	while (done < len_bytes) {
		ssize_t n =
			offset ? pread(fd, buf + done, len_bytes - done, (off_t)(*offset + done))
			       : read(fd, buf + done, len_bytes - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

ssize_t fd_read_full(int fd, void *buf, size_t len_bytes)
{
	return read_all(fd, buf, len_bytes, NULL);
}

ssize_t fd_read_at(int fd, void *buf, size_t len_bytes, uint64_t offset)
{
	return read_all(fd, buf, len_bytes, &offset);
}

/* @offset: NULL: from the file's own position on. */
static int write_all(int fd, const char *buf, size_t len_bytes, const uint64_t *offset)
{
	for (size_t done = 0; done < len_bytes;) {
		const size_t left = len_bytes - done;
		ssize_t n = offset ? pwrite(fd, buf + done, left, (off_t)(*offset + done))
				   : write(fd, buf + done, left);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return 0;
}

int fd_write_full(int fd, const void *buf, size_t len_bytes)
{
	return write_all(fd, buf, len_bytes, NULL);
}

int fd_write_at(int fd, const void *buf, size_t len_bytes, uint64_t offset)
{
	return write_all(fd, buf, len_bytes, &offset);
}

int fd_wait(int fd, short events, uint64_t deadline_ns)
{
	for (;;) {
		struct pollfd p = { .fd = fd, .events = events };
		int n = poll(&p, 1, deadline_left_ms(deadline_ns));

		if (n > 0)
			return 0;
		if (n == 0)
			return -ETIMEDOUT;
		if (errno != EINTR)
			return -errno;
	}
}

int fd_lock(int fd, uint64_t deadline_ns)
{
	enum { PAUSE_NS = 10000000 };

	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK || deadline_left_ms(deadline_ns) == 0)
			return -errno;
		nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
	}
	return 0;
}

int fd_peer(int fd, struct ucred *ret)
{
	socklen_t len = sizeof(*ret);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &len) < 0 ? -errno : 0;
}

void fd_close_others(int a, int b)
{
	const int low = a < b ? a : b, high = a < b ? b : a;

	if (low > 0)
		syscall(SYS_close_range, 0, low - 1, 0);
	if (high > low + 1)
		syscall(SYS_close_range, low + 1, high - 1, 0);
	syscall(SYS_close_range, high + 1, ~0u, 0);
}

static int read_text(int fd, size_t max_bytes, char **ret_text, size_t *ret_len_bytes)
{
	size_t room = 4096, len = 0;
	auto_free char *text = malloc(room + 1);
	if (!text)
		return -ENOMEM;

	for (;;) {
		ssize_t n = fd_read_full(fd, text + len, room - len);
		if (n < 0)
			return (int)n;
		len += (size_t)n;
		if (len > max_bytes)
			return -EFBIG;
		if (len < room)
			break;
		room *= 2;
		char *bigger = realloc(text, room + 1);
		if (!bigger)
			return -ENOMEM;
		text = bigger;
	}
	text[len] = '\0';
	*ret_text = take_ptr(&text);
	if (ret_len_bytes)
		*ret_len_bytes = len;
	return 0;
}

int file_read(int dir_fd, const char *path, size_t max_bytes, char **ret_text,
	      size_t *ret_len_bytes)
{
	auto_close int fd = RESERVE_TRY(openat(dir_fd, path, O_RDONLY | O_CLOEXEC | O_NOCTTY));

	return fd < 0 ? -errno : read_text(fd, max_bytes, ret_text, ret_len_bytes);
}

int file_read_plain(int dir_fd, const char *name, size_t max_bytes, char **ret_text,
		    size_t *ret_len_bytes)
{
	/* Opening a device could have effects, and opening a pipe without a writer would block. */
	auto_close int path_fd = RESERVE_TRY(openat(dir_fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
	char path[32];
	struct stat st;

	if (path_fd < 0 || fstat(path_fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EBADMSG;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", path_fd);
	return file_read(AT_FDCWD, path, max_bytes, ret_text, ret_len_bytes);
}

int sync_dir(int dir_fd, const char *path)
{
	auto_close int fd = RESERVE_TRY(openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));

	if (fd < 0)
		return -errno;
	return fsync(fd) < 0 ? -errno : 0;
}

static int sync_parent(int dir_fd, const char *path)
{
	auto_free char *copy = strdup(path);
	if (!copy)
		return -ENOMEM;

	char *slash = strrchr(copy, '/');
	if (!slash)
		return sync_dir(dir_fd, ".");
	if (slash == copy)
		return sync_dir(dir_fd, "/");
	*slash = '\0';
	return sync_dir(dir_fd, copy);
}

static int write_and_rename(int dir_fd, const char *path, const void *text, size_t len_bytes,
			    mode_t mode, bool sync)
{
	auto_free char *tmp = NULL;
	if (asprintf(&tmp, "%s.tmp.%d.%d", path, getpid(), gettid()) < 0)
		return -ENOMEM;

	int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
	auto_close int fd = RESERVE_TRY(openat(dir_fd, tmp, flags, mode));
	if (fd < 0)
		return -errno;

	int r = fd_write_full(fd, text, len_bytes);
	if (r == 0 && sync && fsync(fd) < 0)
		r = -errno;
	if (r == 0 && renameat(dir_fd, tmp, dir_fd, path) < 0)
		r = -errno;
	if (r < 0 && unlinkat(dir_fd, tmp, 0) < 0)
		unlinkat(dir_fd, tmp, 0); /* try once more after a temporary failure */
	return r;
}

int file_replace(int dir_fd, const char *path, const void *text, size_t len_bytes, mode_t mode)
{
	int r = write_and_rename(dir_fd, path, text, len_bytes, mode, true);

	return r < 0 ? r : sync_parent(dir_fd, path);
}

int file_swap(int dir_fd, const char *path, const void *text, size_t len_bytes, mode_t mode)
{
	return write_and_rename(dir_fd, path, text, len_bytes, mode, false);
}

enum { STAT_BYTES_MAX = 4096 };

/* A zombie counts as ended. False if that cannot be determined. */
static bool has_ended(int pid)
{
	auto_free char *text = NULL;
	char path[32];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	int r = file_read(AT_FDCWD, path, STAT_BYTES_MAX, &text, NULL);
	const char *end = r < 0 ? NULL : strrchr(text, ')');
	return r == -ENOENT || r == -ESRCH || (end && (end[2] == 'Z' || end[2] == 'X'));
}

/* Whether @name is a temporary file of write_and_rename() whose process has ended. */
static bool is_left_over(const char *name)
{
	const char *mark = strstr(name, ".tmp.");
	int pid, tid, end = 0;

	if (!mark || sscanf(mark, ".tmp.%d.%d%n", &pid, &tid, &end) != 2 || mark[end])
		return false;
	return pid > 0 && has_ended(pid);
}

void file_sweep(const char *path)
{
	auto_closedir DIR *dir = dir_open(AT_FDCWD, path);
	struct dirent *entry;

	while (dir && dir_next(dir, &entry) > 0)
		if (is_left_over(entry->d_name))
			unlinkat(dirfd(dir), entry->d_name, 0);
}

static int make_dir(const char *path, mode_t mode, bool sync)
{
	if (mkdir(path, mode) < 0)
		return errno == EEXIST ? 0 : -errno;
	if (!sync)
		return 0;
	/* A directory that is writable but not readable cannot be synced. */
	int r = sync_parent(AT_FDCWD, path);
	return r == -EACCES ? 0 : r;
}

static int make_dirs(const char *path, mode_t mode, bool sync)
{
	auto_free char *copy = strdup(path);
	if (!copy)
		return -ENOMEM;

	for (char *p = copy + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = '\0';
		int r = make_dir(copy, mode, sync);
		if (r < 0)
			return r;
		*p = '/';
	}
	return make_dir(copy, mode, sync);
}

int mkdir_parents(const char *path, mode_t mode)
{
	return make_dirs(path, mode, false);
}

int mkdir_parents_synced(const char *path, mode_t mode)
{
	return make_dirs(path, mode, true);
}

DIR *dir_open(int dir_fd, const char *path)
{
	auto_close int fd = RESERVE_TRY(openat(dir_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (dir)
		take_fd(&fd);
	return dir;
}

int dir_next(DIR *dir, struct dirent **ret)
{
	do {
		errno = 0;
		*ret = readdir(dir);
	} while (*ret && (!strcmp((*ret)->d_name, ".") || !strcmp((*ret)->d_name, "..")));
	return *ret ? 1 : -errno;
}

enum { TREE_DEPTH_MAX = 64 };

static int remove_at_depth(int dir_fd, const char *name, int depth)
{
	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -errno;
	if (depth == TREE_DEPTH_MAX)
		return -ENAMETOOLONG;

	auto_close int fd =
		RESERVE_TRY(openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
	auto_closedir DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir)
		return -errno;
	take_fd(&fd);

	struct dirent *entry;
	int r;
	while ((r = dir_next(dir, &entry)) > 0)
		if ((r = remove_at_depth(dirfd(dir), entry->d_name, depth + 1)) < 0)
			return r;
	if (r < 0)
		return r;
	return unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

int remove_tree(int dir_fd, const char *name)
{
	return remove_at_depth(dir_fd, name, 0);
}

bool fd_disk_has(int fd, uint64_t bytes)
{
	struct statvfs fs;

	return fstatvfs(fd, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize >= bytes;
}

static pthread_mutex_t stock_lock = PTHREAD_MUTEX_INITIALIZER;
static int stock[RESERVE_FDS];
static int n_stock;

void reserve_fill(void)
{
	pthread_mutex_lock(&stock_lock);
	while (n_stock < RESERVE_FDS) {
		int fd = open("/", O_PATH | O_CLOEXEC);

		if (fd < 0)
			break;
		stock[n_stock++] = fd;
	}
	pthread_mutex_unlock(&stock_lock);
}

int reserve_count(void)
{
	pthread_mutex_lock(&stock_lock);
	int n = n_stock;
	pthread_mutex_unlock(&stock_lock);
	return n;
}

bool reserve_lend(int error)
{
	bool lent = false;

	if (error != EMFILE && error != ENFILE)
		return false;
	pthread_mutex_lock(&stock_lock);
	if (n_stock) {
		close(stock[--n_stock]);
		lent = true;
	}
	pthread_mutex_unlock(&stock_lock);
	return lent;
}

int fd_move_up(int *fd, int least)
{
	int copy = *fd < 0 ? -1 : fcntl(*fd, F_DUPFD_CLOEXEC, least);

	cleanup_close(fd);
	*fd = copy;
	return copy < 0 ? -errno : 0;
}
