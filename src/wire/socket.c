// SPDX-License-Identifier: MIT
/* Unix sockets by path: addresses of any length, listening, connecting. */
#include "wire/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

int wire_address_init(struct wire_address *ret, const char *path)
{
	struct wire_address a = { .sun = { .sun_family = AF_UNIX }, .dir_fd = -1 };

	if (strlen(path) < sizeof(a.sun.sun_path)) {
		strcpy(a.sun.sun_path, path);
		*ret = a;
		return 0;
	}

	auto_free char *dir = strdup(path);
	if (!dir)
		return -ENOMEM;
	char *slash = strrchr(dir, '/');
	if (!slash || strlen(slash) > sizeof(a.sun.sun_path) - sizeof("/proc/self/fd/2147483647"))
		return -ENAMETOOLONG;
	*slash = '\0';

	a.dir_fd = open(*dir ? dir : "/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (a.dir_fd < 0)
		return -errno;
	snprintf(a.sun.sun_path, sizeof(a.sun.sun_path), "/proc/self/fd/%d/%s", a.dir_fd,
		 slash + 1);
	*ret = a;
	return 0;
}

void wire_address_fini(struct wire_address *a)
{
	cleanup_close(&a->dir_fd);
}

/* Removes a socket left by an earlier server, and nothing that is not a socket. */
static int remove_old(const char *path)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return -EEXIST;
	return unlink(path) < 0 && errno != ENOENT ? -errno : 0;
}

/* The mode is set before bind(2), so that the socket is at no moment open to more than it should
 * be, and again after it, because bind(2) takes the umask off. */
static int bind_and_listen(int fd, const char *path, mode_t mode)
{
	auto_(wire_address_fini) struct wire_address a = { .dir_fd = -1 };
	int r = wire_address_init(&a, path);
	if (r < 0)
		return r;
	if (fchmod(fd, mode) < 0 || bind(fd, (struct sockaddr *)&a.sun, sizeof(a.sun)) < 0 ||
	    chmod(a.sun.sun_path, mode) < 0 || listen(fd, SOMAXCONN) < 0)
		return -errno;
	return 0;
}

int wire_listen(const char *path, mode_t mode, struct brumate_error *err)
{
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return brumate_fail(err, errno, "socket: %m");

	int r = remove_old(path);
	if (r == 0)
		r = bind_and_listen(fd, path, mode);
	if (r < 0)
		return brumate_fail(err, -r, "listen on %s: %m", path);
	return take_fd(&fd);
}

/* connect(2) waits where the server's backlog is full: not for ever. */
static int set_send_timeout(int fd, int timeout_ms)
{
	struct timeval tv = { timeout_ms / 1000, timeout_ms % 1000 * 1000 };

	return setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &tv, sizeof(tv)) < 0 ? -errno : 0;
}

static int connect_path(int fd, const char *path)
{
	auto_(wire_address_fini) struct wire_address a = { .dir_fd = -1 };
	int r = wire_address_init(&a, path);
	if (r < 0)
		return r;
	r = set_send_timeout(fd, WIRE_CONNECT_TIMEOUT_MS);
	if (r < 0)
		return r;
	while (connect(fd, (struct sockaddr *)&a.sun, sizeof(a.sun)) < 0)
		if (errno != EINTR)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
	return set_send_timeout(fd, 0);
}

int wire_connect(struct wire *ret, const char *path, struct brumate_error *err)
{
	auto_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return brumate_fail(err, errno, "socket: %m");

	int r = connect_path(fd, path);
	if (r < 0)
		return brumate_fail(err, -r, "connect to %s: %m", path);
	wire_init(ret, take_fd(&fd));
	return 0;
}
