// SPDX-License-Identifier: MIT
/* The directory of segments on a disk, and fresh files in it. See spill.h. */
#include "broker/spill.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/paths.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statfs.h>
#include <unistd.h>

static char *dir;

int spill_init(const char *wanted)
{
	free(dir);
	dir = wanted ? strdup(wanted) : path_format("%s/spill", path_state_dir());
	return dir ? 0 : -ENOMEM;
}

const char *spill_dir(void)
{
	return dir;
}

static int fail_dir(int r, struct brumate_error *err)
{
	brumate_fail(err, -r, "%s: %m", dir);
	brumate_hint(err, "set SpillDirectory= in [Broker] of brumate.conf");
	return r;
}

/* Of the directory, or of the one above it that is there. */
static int stat_nearest(struct statfs *ret)
{
	auto_free char *path = strdup(dir);

	while (path && statfs(path, ret) < 0) {
		char *slash = strrchr(path, '/');

		if (errno != ENOENT || !slash || !path[1])
			return -errno;
		slash[slash == path] = '\0';
	}
	return path ? 0 : -ENOMEM;
}

int spill_free_bytes(uint64_t *ret, struct brumate_error *err)
{
	struct statfs fs;
	int r = stat_nearest(&fs);

	if (r < 0)
		return fail_dir(r, err);
	if (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC) {
		brumate_fail(err, EOPNOTSUPP, "%s: a file system in memory, which saves none", dir);
		brumate_hint(err, "set SpillDirectory= in [Broker] of brumate.conf");
		return -EOPNOTSUPP;
	}
	*ret = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
	return 0;
}

/* For file systems without O_TMPFILE. */
static int open_named(int flags)
{
	auto_free char *path = path_format("%s/segment-XXXXXX", dir);

	if (!path)
		return -ENOMEM;
	int fd = mkostemp(path, flags);
	if (fd < 0)
		return -errno;
	unlink(path);
	return fd;
}

static int open_file(int flags)
{
	int fd = open(dir, O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC | flags, 0600);

	if (fd >= 0)
		return fd;
	if (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)
		return open_named(O_CLOEXEC | flags);
	return -errno;
}

int spill_open(uint64_t bytes, struct brumate_error *err)
{
	int r = fault_point("data.spill-open");

	if (r == 0)
		r = mkdir_parents(dir, 0700);
	int opened = r < 0 ? r : open_file(O_DIRECT);
	if (opened == -EINVAL) /* goes through the page cache instead, which is slower */
		opened = open_file(0);
	if (opened < 0)
		return fail_dir(opened, err);
	auto_close int fd = opened;
	if (fallocate(fd, 0, 0, (off_t)bytes) < 0 &&
	    (errno != EOPNOTSUPP || ftruncate(fd, (off_t)bytes) < 0))
		return fail_dir(-errno, err);
	return take_fd(&fd);
}
