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

int call_sync_file(int fd)
{
	return files_sync(fd, "store.sync-file");
}

int call_sync_dir(int fd)
{
	return files_sync(fd, "store.sync-dir");
}

int call_sync_store(int fd)
{
	return files_sync(fd, "store.sync-store");
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
