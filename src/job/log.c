// SPDX-License-Identifier: MIT
/* Opening the file that a job's output is appended to; see log.h. */
#include "job/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/paths.h"
#include "base/user.h"

enum { MARKS_BYTES_MAX = 16 << 20 };
enum { APPEND = O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK };

char *job_log_default(const char *id)
{
	return path_format("%s/%s.log", path_log_dir(), id);
}

static int refuse_pipe(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) || S_ISCHR(st.st_mode) ? 0 : -ENXIO;
}

/* O_NONBLOCK was for open() alone: what a program writes may block, as always. */
static int let_block(int fd)
{
	return fcntl(fd, F_SETFL, O_APPEND) < 0 ? -errno : 0;
}

int output_open(int dir_fd, const char *path)
{
	auto_close int fd = openat(dir_fd, path, APPEND | O_CREAT, 0600);

	if (fd < 0)
		return -errno;
	int r = refuse_pipe(fd);
	if (r == 0)
		r = let_block(fd);
	return r < 0 ? r : take_fd(&fd);
}

static int fail_log(const char *path, int code, struct brumate_error *err)
{
	if (code == ENXIO)
		return brumate_fail(err, EINVAL, "log %s: is neither a file nor a terminal", path);
	return brumate_fail(err, code, "log %s: %m", path);
}

/* Makes the log as root and gives it to the user. A log that is there keeps its owner. */
static int open_default(const struct target *t, struct brumate_error *err)
{
	int r = mkdir_parents(path_log_dir(), 0711);
	struct stat st;

	if (r < 0)
		return brumate_fail(err, -r, "log directory %s: %m", path_log_dir());
	auto_close int fd = open(t->log, APPEND | O_NOFOLLOW | O_CREAT | O_EXCL, 0600);
	if (fd >= 0 && geteuid() == 0 && fchown(fd, t->uid, t->gid) < 0)
		return fail_log(t->log, errno, err);
	if (fd < 0 && errno == EEXIST)
		fd = open(t->log, APPEND | O_NOFOLLOW);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fail_log(t->log, errno, err);
	if (!S_ISREG(st.st_mode))
		return fail_log(t->log, ENXIO, err);
	if (t->uid != 0 && st.st_uid != t->uid)
		return brumate_fail(err, EACCES, "log %s: belongs to uid %u", t->log,
				    (unsigned)st.st_uid);
	r = let_block(fd);
	return r < 0 ? fail_log(t->log, -r, err) : take_fd(&fd);
}

static int make_dirs_of(const char *path, struct brumate_error *err)
{
	auto_free char *dir = strdup(path);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (!slash || slash == dir)
		return 0;
	*slash = '\0';
	int r = mkdir_parents(dir, 0711);
	return r < 0 ? brumate_fail(err, -r, "log directory %s: %m", dir) : 0;
}

int job_log_open(const struct target *t, bool make_dirs, struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	auto_free char *own = job_log_default(t->id);

	if (!own)
		return brumate_fail(err, ENOMEM, "%m");
	if (!strcmp(t->log, own))
		return open_default(t, err);

	int r = user_files_enter(&user, t->uid, t->gid, err);
	if (r < 0 || (make_dirs && (r = make_dirs_of(t->log, err)) < 0))
		return r;
	r = output_open(AT_FDCWD, t->log);
	return r < 0 ? fail_log(t->log, -r, err) : r;
}

/* ---- marks ---- */

/* One line of the file, or false at its end. A line that is none ends it, too. */
static bool next_mark(struct log_mark *ret, const char **text)
{
	char *end;

	errno = 0;
	ret->ms = strtoull(*text, &end, 10);
	if (end == *text || *end != ' ' || errno)
		return false;
	ret->size_bytes = strtoull(end + 1, &end, 10);
	if (*end != '\n' || errno)
		return false;
	*text = end + 1;
	return true;
}

int log_marks_read(struct log_mark **ret, size_t *ret_n, const char *path)
{
	auto_free char *text = NULL;
	size_t len = 0, n = 0, room = 1;
	int r = file_read(AT_FDCWD, path, MARKS_BYTES_MAX, &text, &len);

	if (r < 0 && r != -ENOENT)
		return r;
	for (const char *p = text; p && (p = strchr(p, '\n')); p++)
		room++;
	auto_free struct log_mark *marks = calloc(room, sizeof(*marks));
	if (!marks)
		return -ENOMEM;
	const char *p = text ? text : "";
	while (n < room && next_mark(&marks[n], &p))
		n += !n || marks[n].size_bytes > marks[n - 1].size_bytes;
	*ret = take_ptr(&marks);
	*ret_n = n;
	return 0;
}
