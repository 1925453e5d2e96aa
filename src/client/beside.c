// SPDX-License-Identifier: MIT
/* Sockets for the processes of a job, in the directory of its agents. See the header. */
#include "client/beside.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/thread.h"

/* A socket that is to be bound. */
struct binding {
	const char *name;
	int fd, dir_fd;
	int r;
};

/* The socket's mode is what the file creation mask leaves of 0777, and that mask is the process's: a thread takes one of its
 * own first. */
static void *bind_for_all(void *arg)
{
	struct binding *b = arg;
	struct sockaddr_un at = { .sun_family = AF_UNIX };

	snprintf(at.sun_path, sizeof(at.sun_path), "/proc/self/fd/%d/%s", b->dir_fd, b->name);
	b->r = unshare(CLONE_FS) < 0 ? -errno : 0;
	if (b->r < 0)
		return NULL;
	umask(0111);
	if (bind(b->fd, (struct sockaddr *)&at, sizeof(at)) < 0)
		b->r = -errno;
	return NULL;
}

int beside_listen(int dir_fd, const char *name, int type, int backlog)
{
	auto_close int fd = socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	struct binding b = { .name = name, .fd = fd, .dir_fd = dir_fd };
	pthread_t thread;

	if (fd < 0)
		return -errno;
	/* The job's user may write there: what lies there by that name afterwards is not to be touched by it. */
	unlinkat(dir_fd, name, 0);
	int r = thread_start(&thread, bind_for_all, &b);
	if (r < 0)
		return r;
	pthread_join(thread, NULL);
	if (b.r == 0 && type != SOCK_DGRAM && listen(fd, backlog) < 0)
		b.r = -errno;
	return b.r < 0 ? b.r : take_fd(&fd);
}
