// SPDX-License-Identifier: MIT
/* Opens, lists and syncs files of a checkpoint, and words their errors; see files.h. */
#include "chunks/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/fault.h"
#include "base/size.h"

enum { AGAIN_MAX = 16 };

static int open_beneath(int dir_fd, const char *path, int flags)
{
	struct open_how how = {
		.flags = (unsigned)flags | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};

	/* EAGAIN: something was renamed during the lookup, and the kernel could not prove that it stayed beneath the
	 * directory. */
	for (int i = 0; i < AGAIN_MAX; i++) {
		long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));

		if (fd >= 0)
			return (int)fd;
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
	}
	return -EAGAIN;
}

int files_open(int dir_fd, const char *path, struct stat *ret_st)
{
	/* O_NONBLOCK: a pipe in the place of a file must not block us. */
	auto_close int fd =
		open_beneath(dir_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
	struct stat st;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EMEDIUMTYPE;
	if (ret_st)
		*ret_st = st;
	return take_fd(&fd);
}

/* Files that other users could have written are not trusted: restoring an image runs it. */
int files_check_owner(const struct stat *st, struct brumate_error *err)
{
	if (st->st_uid != geteuid() && st->st_uid != 0) {
		brumate_fail(err, EACCES, "belongs to uid %u, not to you (uid %u) or root",
			     st->st_uid, geteuid());
		brumate_hint(err, "only the owner of a checkpoint may use it");
		return -EACCES;
	}
	if (st->st_mode & (S_IWGRP | S_IWOTH)) {
		brumate_fail(err, EACCES, "users other than its owner may write to it (mode %04o)",
			     st->st_mode & 07777);
		brumate_hint(err,
			     "if you know that nobody changed it: chmod -R go-w on the checkpoint");
		return -EACCES;
	}
	return 0;
}

/* ---- names ---- */

bool files_cannot_tell(int code)
{
	static const int codes[] = { EIO,	   ENOMEM,	EMFILE,	   ENFILE,    ESTALE,
				     ETIMEDOUT,	   ENOTCONN,	EHOSTDOWN, EREMOTEIO, ENETDOWN,
				     EHOSTUNREACH, ENETUNREACH, ENODEV,	   ENXIO };

	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		if (code == codes[i])
			return true;
	return false;
}

void dir_names_fini(struct dir_names *n)
{
	for (size_t i = 0; i < n->n; i++)
		free(n->ids[i]);
	free(n->ids);
	*n = DIR_NAMES_EMPTY;
}

static int add(struct dir_names *n, const char *name)
{
	int r = array_add(n->ids, n->n, strdup(name));

	return r < 0 || n->ids[n->n - 1] ? r : -ENOMEM;
}

static bool is_directory(int store_fd, const char *name)
{
	struct stat st;

	/* What cannot be looked at may be one: an attempt to open it gives the reason. */
	return fstatat(store_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? S_ISDIR(st.st_mode)
								      : errno != ENOENT;
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int dir_names_list(struct dir_names *ret, int store_fd, bool (*wanted)(const char *name))
{
	auto_(dir_names_fini) struct dir_names all = DIR_NAMES_EMPTY;
	auto_close int own = openat(store_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (own < 0)
		return -errno;
	auto_closedir DIR *dir = fdopendir(own);
	if (!dir)
		return -errno;
	take_fd(&own);

	for (;;) {
		errno = 0;
		struct dirent *entry = readdir(dir);

		if (!entry && errno)
			return -errno;
		if (!entry)
			break;
		if (!wanted(entry->d_name) || !is_directory(store_fd, entry->d_name))
			continue;
		int r = add(&all, entry->d_name);
		if (r < 0)
			return r;
	}
	if (all.n)
		qsort(all.ids, all.n, sizeof(all.ids[0]), by_text);
	*ret = all;
	all = DIR_NAMES_EMPTY;
	return 0;
}

/* ---- writing ---- */

int files_sync(int fd, const char *point)
{
	int r = fault_point(point);

	if (r < 0)
		return r;
	return fsync(fd) < 0 ? -errno : 0;
}

static void hint_space(struct brumate_error *err, const char *path)
{
	struct statvfs fs;

	if (statvfs(path, &fs) == 0)
		brumate_hint(err,
			     "%s are free there: remove checkpoints (`brumate ls`, `brumate "
			     "rm`), or "
			     "choose another place with --dir",
			     SIZE_TEXT((uint64_t)fs.f_bavail * fs.f_frsize));
	else
		brumate_hint(err, "free some space there, or choose another place with --dir");
}

int files_fail(struct brumate_error *err, int code, const char *path, const char *doing)
{
	brumate_fail(err, code, "%s: %s: %m", path, doing);

	switch (code) {
	case ENOSPC:
		hint_space(err, path);
		break;
	case EDQUOT:
		brumate_hint(
			err,
			"the quota of uid %u is used up there: remove files, raise it, or choose "
			"another place with --dir",
			geteuid());
		break;
	case EROFS:
		brumate_hint(err, "choose a place that can be written to with --dir");
		break;
	case EIO:
		brumate_hint(
			err,
			"the disk reports errors: look at `dmesg`, and choose another place with "
			"--dir");
		break;
	case EACCES:
	case EPERM:
		brumate_hint(err, "choose a directory of your own with --dir");
		break;
	default:
		break;
	}
	return -code;
}
