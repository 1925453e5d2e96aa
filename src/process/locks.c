// SPDX-License-Identifier: MIT
/* Locks of bytes of files; see locks.h. */
#include "process/locks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/escape.h"
#include "process/aside.h"

enum { FDINFO_BYTES_MAX = 16 << 20, ASK_MS = 5000 };

#define HEADING "brumate locks 1\n"

void file_locks_fini(struct file_locks *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->items[i].path);
	free(l->items);
	*l = FILE_LOCKS_EMPTY;
}

/* ---- reading ---- */

/* A line of fdinfo: "lock:\t1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 0 EOF". False: no lock of a kind that is listed here. */
static bool parse_lock(struct file_lock *l, const char *line)
{
	static const char *const words[] = { [FILE_LOCK_OF_PROCESS] = "POSIX",
					     [FILE_LOCK_OF_OPEN_FILE] = "OFDLCK",
					     [FILE_LOCK_WHOLE] = "FLOCK" };
	char kind[8], access[8], end[24];

	if (sscanf(line, "lock:\t%*d: %7s %*s %7s %*d %*s %" SCNu64 " %23s", kind, access,
		   &l->start, end) != 4)
		return false;
	l->writes = !strcmp(access, "WRITE");
	l->end = !strcmp(end, "EOF") ? INT64_MAX : strtoull(end, NULL, 10);
	for (l->kind = 0; l->kind <= FILE_LOCK_WHOLE; l->kind++)
		if (!strcmp(kind, words[l->kind]))
			return true;
	return false;
}

static int add_lock(struct file_locks *l, struct file_lock lock, const char *path)
{
	if (l->n >= FILE_LOCKS_MAX)
		return -E2BIG;
	if (path && !(lock.path = strdup(path)))
		return -ENOMEM;
	int r = array_add(l->items, l->n, lock);
	if (r < 0)
		free(lock.path);
	return r;
}

static int read_descriptor(struct file_locks *l, const struct proc_info *info, int fd,
			   const char *path)
{
	auto_free char *text = NULL;
	char name[32];

	snprintf(name, sizeof(name), "fdinfo/%d", fd);
	int r = proc_file_read(info->id.pid, name, FDINFO_BYTES_MAX, &text, NULL);
	if (r < 0)
		return r;
	for (const char *line = text; (line = strstr(line, "lock:\t")) && r == 0; line++) {
		struct file_lock lock = { .pid = info->inner_pid, .fd = fd };

		if (parse_lock(&lock, line))
			r = add_lock(l, lock, path);
	}
	return r;
}

static int read_process(struct file_locks *l, const struct proc_info *info)
{
	auto_closedir DIR *dir = proc_dir_open(info->id.pid, "fd");
	int r = dir ? 0 : -errno;

	for (struct dirent *e; r == 0 && (e = readdir(dir));) {
		char target[PATH_MAX];
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		/* All others have names without a slash: "socket:[4711]". */
		if (n <= 0 || target[0] != '/')
			continue;
		target[n] = '\0';
		r = read_descriptor(l, info, atoi(e->d_name), target);
	}
	return r == -ENOENT || r == -ESRCH ? 0 : r;
}

int file_locks_read(struct file_locks *ret, const struct proc_tree *tree)
{
	auto_(file_locks_fini) struct file_locks l = FILE_LOCKS_EMPTY;
	int r = 0;

	for (size_t i = 0; i < tree->n && r == 0; i++)
		if (tree->items[i].state != 'Z')
			r = read_process(&l, &tree->items[i]);
	if (r == 0)
		*ret = take_struct(l, FILE_LOCKS_EMPTY);
	return r;
}

/* ---- as text ---- */

static const char *const kinds[] = { [FILE_LOCK_OF_PROCESS] = "process",
				     [FILE_LOCK_OF_OPEN_FILE] = "open-file",
				     [FILE_LOCK_WHOLE] = "whole" };

static int encode_lock(FILE *f, const struct file_lock *l)
{
	auto_free char *path = l->path ? text_escape(l->path, strlen(l->path)) : strdup("-");

	if (!path)
		return -ENOMEM;
	fprintf(f, "%d %d %s %s %" PRIu64 " %" PRIu64 " %s\n", l->pid, l->fd, kinds[l->kind],
		l->writes ? "write" : "read", l->start, l->end, path);
	return 0;
}

char *file_locks_encode(const struct file_locks *l, size_t *ret_len_bytes)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_len_bytes);

	if (!f)
		return NULL;
	fputs(HEADING, f);
	int r = 0;
	for (size_t i = 0; i < l->n && r == 0; i++)
		r = encode_lock(f, &l->items[i]);
	if (fclose(f) != 0 || r < 0) {
		free(text);
		return NULL;
	}
	return text;
}

static int decode_lock(struct file_locks *l, const char *line)
{
	auto_free char *path = NULL;
	struct file_lock lock = { 0 };
	char kind[16], access[8];
	int end = 0;

	if (sscanf(line, "%d %d %15s %7s %" SCNu64 " %" SCNu64 " %n", &lock.pid, &lock.fd, kind,
		   access, &lock.start, &lock.end, &end) != 6 ||
	    !line[end] || lock.pid <= 0 || lock.fd < 0 || lock.start > lock.end ||
	    lock.end > INT64_MAX || (strcmp(access, "read") && strcmp(access, "write")))
		return -EBADMSG;
	while (lock.kind <= FILE_LOCK_WHOLE && strcmp(kind, kinds[lock.kind]))
		lock.kind++;
	if (lock.kind > FILE_LOCK_WHOLE || l->n >= FILE_LOCKS_MAX)
		return -EBADMSG;
	lock.writes = !strcmp(access, "write");
	int r = strcmp(line + end, "-") ? text_unescape(&path, line + end) : 0;
	if (r == 0 && path && path[0] != '/')
		r = -EBADMSG;
	return r < 0 ? r : add_lock(l, lock, path);
}

int file_locks_decode(struct file_locks *ret, const char *text, size_t len_bytes)
{
	auto_(file_locks_fini) struct file_locks l = FILE_LOCKS_EMPTY;
	auto_free char *copy = strndup(text, len_bytes);
	int r = 0;

	if (!copy)
		return -ENOMEM;
	if (strlen(copy) != len_bytes || strncmp(copy, HEADING, strlen(HEADING)))
		return -EBADMSG;
	for (char *line = copy + strlen(HEADING), *next; *line && r == 0; line = next) {
		next = strchr(line, '\n');
		if (!next)
			return -EBADMSG;
		*next++ = '\0';
		r = decode_lock(&l, line);
	}
	if (r == 0)
		*ret = take_struct(l, FILE_LOCKS_EMPTY);
	return r;
}

/* ---- before a restore ---- */

static int fail_lock(const struct file_lock *l, const char *what, struct brumate_error *err)
{
	char range[64] = "";

	if (l->end != INT64_MAX)
		snprintf(range, sizeof(range), "bytes %" PRIu64 " to %" PRIu64 " of ", l->start,
			 l->end);
	else if (l->start)
		snprintf(range, sizeof(range), "all from byte %" PRIu64 " on of ", l->start);
	int r = brumate_fail(err, EBUSY, "process %d %s a lock on %s%s", l->pid, what, range,
			     l->path ? l->path : "its file");
	brumate_hint(err, "somebody else has locked it by now: see lslocks(8)");
	return r;
}

static struct flock as_flock(const struct file_lock *l)
{
	return (struct flock){
		.l_type = l->writes ? F_WRLCK : F_RDLCK,
		.l_whence = SEEK_SET,
		.l_start = (off_t)l->start,
		.l_len = l->end == INT64_MAX ? 0 : (off_t)(l->end - l->start + 1),
	};
}

/* What cannot be opened, or has no such locks, is for CRIU to say. */
static bool is_of_others(const struct file_lock *l)
{
	auto_close int fd = open(l->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	struct flock f = as_flock(l);

	if (fd < 0)
		return false;
	if (l->kind == FILE_LOCK_WHOLE)
		return flock(fd, (l->writes ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0 &&
		       errno == EWOULDBLOCK;
	return fcntl(fd, F_OFD_GETLK, &f) == 0 && f.l_type != F_UNLCK;
}

struct asking {
	const struct file_locks *locks;
	size_t *at; /* of the lock that is asked for; shared with the child */
};

static int ask_for_all(void *arg)
{
	const struct asking *a = arg;

	for (*a->at = 0; *a->at < a->locks->n; ++*a->at)
		if (a->locks->items[*a->at].path && is_of_others(&a->locks->items[*a->at]))
			return EBUSY;
	return 0;
}

int file_locks_can_be_had(const struct file_locks *l, struct brumate_error *err)
{
	struct asking a = { l, l->n ? aside_memory(sizeof(size_t)) : NULL };

	if (!l->n)
		return 0;
	if (!a.at)
		return brumate_fail(err, ENOMEM, "%m");
	int r = aside_run(ask_for_all, &a, -1, ASK_MS);
	const size_t at = *a.at;
	aside_free(a.at, sizeof(size_t));
	if (r == -EBUSY && at < l->n)
		return fail_lock(&l->items[at], "cannot be given", err);
	if (r == -ETIMEDOUT && at < l->n)
		return brumate_fail(err, ETIMEDOUT,
				    "%s, which process %d has locked, does not answer",
				    l->items[at].path, l->items[at].pid);
	return r < 0 ? brumate_fail(err, -r, "locks of files: %m") : 0;
}

/* ---- setting them again ---- */

int file_locks_add_calls(const struct file_locks *l, struct attributes_call **calls, size_t *n)
{
	int r = 0;

	for (size_t i = 0; i < l->n && r == 0; i++) {
		const struct file_lock *lock = &l->items[i];
		const struct flock f = as_flock(lock);
		struct attributes_call call = { .pid = lock->pid,
						.tid = lock->pid,
						.number = SYS_fcntl,
						.arguments = { (uint64_t)lock->fd, F_SETLK },
						.mask_argument = 2 };

		_Static_assert(sizeof(f) <= sizeof(call.mask), "a lock fits");
		memcpy(call.mask, &f, sizeof(f));
		if (lock->kind == FILE_LOCK_OF_PROCESS)
			r = array_add(*calls, *n, call);
	}
	return r;
}

/* How many locks of these bytes the process has, by whichever descriptor. */
static size_t count_like(const struct file_locks *l, const struct file_lock *like)
{
	size_t n = 0;

	for (size_t i = 0; i < l->n; i++)
		n += l->items[i].kind == like->kind && l->items[i].pid == like->pid &&
		     l->items[i].writes == like->writes && l->items[i].start == like->start &&
		     l->items[i].end == like->end;
	return n;
}

int file_locks_check(const struct file_locks *l, const struct proc_tree *tree,
		     struct brumate_error *err)
{
	auto_(file_locks_fini) struct file_locks now = FILE_LOCKS_EMPTY;
	int r = l->n ? file_locks_read(&now, tree) : 0;

	if (r < 0)
		return brumate_fail(err, -r, "locks of files: %m");
	for (size_t i = 0; i < l->n && r == 0; i++)
		if (l->items[i].kind == FILE_LOCK_OF_PROCESS &&
		    count_like(&now, &l->items[i]) < count_like(l, &l->items[i]))
			r = fail_lock(&l->items[i], "could not be given", err);
	return r;
}
