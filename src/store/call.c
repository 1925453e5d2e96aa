// SPDX-License-Identifier: MIT
/* The file calls of the store with their fault points, and the words for their failures. */
#include "store/call.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

int call_mkdir(int dir_fd, const char *name)
{
	int r = fault_point("store.mkdir");

	if (r < 0)
		return r;
	if (mkdirat(dir_fd, name, 0700) < 0)
		return -errno;
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int sync_fd(int fd, const char *point)
{
	int r = fault_point(point);

	if (r < 0)
		return r;
	return fsync(fd) < 0 ? -errno : 0;
}

int call_sync_file(int fd)
{
	return sync_fd(fd, "store.sync-file");
}

int call_sync_dir(int fd)
{
	return sync_fd(fd, "store.sync-dir");
}

int call_sync_store(int fd)
{
	return sync_fd(fd, "store.sync-store");
}

int call_write_manifest(int dir_fd, const char *name, const void *text, size_t len_bytes)
{
	int r = fault_point("store.write-manifest");
	if (r < 0)
		return r;

	auto_close int fd =
		openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = fd_write_full(fd, text, len_bytes);
	if (r < 0)
		return r;
	return fsync(fd) < 0 ? -errno : 0;
}

int call_rename(int dir_fd, const char *from, const char *to)
{
	struct stat st;
	int r = fault_point("store.rename");

	if (r < 0)
		return r;
	if (renameat2(dir_fd, from, dir_fd, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;

	/* A file system without RENAME_NOREPLACE: rename(2) never replaces a directory that is not
	 * empty, and a checkpoint never is. */
	if (fstatat(dir_fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return -EEXIST;
	if (renameat(dir_fd, from, dir_fd, to) == 0)
		return 0;
	return errno == ENOTEMPTY ? -EEXIST : -errno;
}

int call_remove_tree(int dir_fd, const char *name)
{
	int r = fault_point("store.remove");

	return r < 0 ? r : remove_tree(dir_fd, name);
}

static void hint_space(struct brumate_error *err, const char *path)
{
	struct statvfs fs;

	if (statvfs(path, &fs) == 0)
		brumate_hint(err,
			     "%.1f GiB are free there: remove checkpoints (`brumate ls`, `brumate "
			     "rm`), or "
			     "choose another place with --dir",
			     (double)fs.f_bavail * (double)fs.f_frsize / (1 << 30));
	else
		brumate_hint(err, "free some space there, or choose another place with --dir");
}

int call_fail(struct brumate_error *err, int code, const char *path, const char *doing)
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
