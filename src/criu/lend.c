// SPDX-License-Identifier: MIT
/* Directories of images that a CRIU of another user works in. */
#include "criu/criu-private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef int (*image_fn)(int dir_fd, const char *name, const void *arg);

static int for_each_image(int dir_fd, image_fn fn, const void *arg)
{
	int copy = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	auto_closedir DIR *dir = copy < 0 ? NULL : fdopendir(copy);
	int r = 0;

	if (!dir)
		return -errno;
	for (struct dirent *e; r == 0 && (e = readdir(dir));)
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			r = fn(dir_fd, e->d_name, arg);
	return r;
}

static int lend_image(int dir_fd, const char *name, const void *arg)
{
	const struct criu_user *user = arg;

	return fchownat(dir_fd, name, user->uid, user->gid, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}

int criu_lend_dir(int dir_fd, const struct criu_user *user)
{
	int r = for_each_image(dir_fd, lend_image, user);

	if (r == 0 && fchown(dir_fd, user->uid, user->gid) < 0)
		r = -errno;
	return r;
}

/* A link would give us, and then show as a part of the image, what is none. */
static int take_back_image(int dir_fd, const char *name, const void *arg)
{
	auto_close int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	(void)arg;
	if (fd < 0)
		return errno == ELOOP || errno == ENXIO ? -EBADMSG : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_nlink != 1)
		return -EBADMSG;
	return fchown(fd, geteuid(), getegid()) < 0 ? -errno : 0;
}

int criu_take_back_dir(int dir_fd)
{
	/* First the directory, so that nothing is put into it after it was looked at. */
	if (fchown(dir_fd, geteuid(), getegid()) < 0)
		return -errno;
	return for_each_image(dir_fd, take_back_image, NULL);
}

static int is_tcp_image(int dir_fd, const char *name, const void *arg)
{
	(void)dir_fd;
	(void)arg;
	return !strncmp(name, "tcp-stream-", strlen("tcp-stream-"));
}

bool criu_images_have_tcp(int dir_fd)
{
	return for_each_image(dir_fd, is_tcp_image, NULL) > 0;
}
