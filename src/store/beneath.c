// SPDX-License-Identifier: MIT
/* Opening files beneath a directory; see beneath.h. */
#include "store/beneath.h"
#include "base/cleanup.h"
#include "image/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { AGAIN_MAX = 16 };

int beneath_open_walk(int dir_fd, const char *path, int flags)
{
	/* The rule of manifests has no "..", no leading '/' and no empty part, so each part is a name. */
	if (!manifest_path_is_valid(path))
		return -EXDEV;

	auto_free char *copy = strdup(path);
	auto_close int at = -1;
	char *rest = copy;
	if (!copy)
		return -ENOMEM;

	for (;;) {
		char *name = strsep(&rest, "/");
		int how = rest ? O_PATH | O_DIRECTORY : flags;
		int fd = openat(at < 0 ? dir_fd : at, name, how | O_NOFOLLOW | O_CLOEXEC);

		/* O_PATH | O_DIRECTORY on a link is ENOTDIR: not a directory either way. */
		if (fd < 0)
			return -errno;
		if (!rest)
			return fd;
		cleanup_close(&at);
		at = fd;
	}
}

static int beneath_open(int dir_fd, const char *path, int flags)
{
	struct open_how how = {
		.flags = (unsigned)flags | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};

	/* EAGAIN: something was renamed meanwhile, and the kernel could not prove that we stay beneath. */
	for (int i = 0; i < AGAIN_MAX; i++) {
		long fd = syscall(SYS_openat2, dir_fd, path, &how, sizeof(how));

		if (fd >= 0)
			return (int)fd;
		if (errno == ENOSYS || errno == EPERM)
			return beneath_open_walk(dir_fd, path, flags);
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
	}
	return -EAGAIN;
}

int beneath_open_file(int dir_fd, const char *path, struct stat *ret_st)
{
	/* O_NONBLOCK: a pipe put in the place of a file must not hold us up. */
	auto_close int fd =
		beneath_open(dir_fd, path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_NOFOLLOW);
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
