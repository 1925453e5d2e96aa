// SPDX-License-Identifier: MIT
/* See scout.h. */
#include "client/scout.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/packet.h"
#include "gpu/vendor.h"
#include "process/reap.h"

enum {
	PATIENCE_MS = 10000,
	WAIT_PIDFD = 3, /* P_PIDFD, which older headers lack */
};

struct scout {
	int fd;	      /* to ask it */
	int pid_fd;   /* of the child */
	bool is_lost; /* it may never end */
};

/* ---- the child: system calls only, as its parent has threads ---- */

static bool is_device_of_driver(int fd)
{
	char link[32], path[256];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path));
	return n > 0 && gpu_is_device(path, (size_t)n);
}

/* A file system that does not answer here is found out by our parent's patience. */
static bool may_hang(int fd, bool simulated)
{
	struct statx st;
	struct statfs fs;

	if (statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, &st) < 0)
		return true;
	if (S_ISCHR(st.stx_mode))
		return !is_device_of_driver(fd);
	if (!S_ISREG(st.stx_mode) || fstatfs(fd, &fs) < 0)
		return true;
	if (simulated)
		return fs.f_type == FUSE_SUPER_MAGIC;
	return fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC;
}

static int look(int socket_fd, bool simulated)
{
	int items[PACKET_FDS_KERNEL_MAX];
	struct packet_fds fds = { items, PACKET_FDS_KERNEL_MAX };
	int r = packet_peek(socket_fd, &fds, 0);

	for (size_t i = 0; r == 0 && i < fds.n; i++)
		if (may_hang(items[i], simulated))
			r = -EBADMSG;
	if (r < 0)
		return r;
	packet_close_fds(items, fds.n);
	return fds.state == PACKET_LOST_FDS ? -EMFILE : 0;
}

/* The last close may hang. It comes before the exit, as a process that hangs in exit no longer shows which program it
 * runs. */
static _Noreturn void run_scout(int socket_fd, int fd, bool simulated)
{
	int verdict;

	prctl(PR_SET_NAME, "brumate-scout");
	fd_close_others(socket_fd, fd);
	while (recv(fd, &verdict, sizeof(verdict), 0) > 0) {
		verdict = look(socket_fd, simulated);
		send(fd, &verdict, sizeof(verdict), MSG_NOSIGNAL);
	}
	close(fd);
	close(socket_fd);
	syscall(SYS_close_range, 0, ~0u, 0);
	_exit(0);
}

/* ---- the parent ---- */

/* Nobody reaps it until we have its pidfd, which reports its end even if another thread reaps it. */
static int start_child(struct scout *s, int socket_fd, int fd, bool simulated)
{
	reap_lock();
	pid_t pid = fork();
	if (pid == 0)
		run_scout(socket_fd, fd, simulated);
	s->pid_fd = pid < 0 ? -1 : RESERVE_TRY((int)syscall(SYS_pidfd_open, pid, 0));
	int r = s->pid_fd < 0 ? -errno : 0;
	reap_unlock();
	return r;
}

int scout_start(struct scout **ret, int socket_fd, bool simulated)
{
	auto_free struct scout *s = calloc(1, sizeof(*s));
	int ends[2];

	if (!s)
		return -ENOMEM;
	if (RESERVE_TRY(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends)) < 0)
		return -errno;
	auto_close int own = ends[0], its = ends[1];
	int r = start_child(s, socket_fd, its, simulated);
	if (r < 0)
		return r;
	s->fd = take_fd(&own);
	*ret = take_ptr(&s);
	return 0;
}

int scout_look(struct scout *s)
{
	const uint64_t deadline_ns = deadline_in_ms(PATIENCE_MS);
	struct packet_fds none = { 0 };
	int verdict = 0;
	ssize_t n = packet_send(s->fd, &verdict, sizeof(verdict), NULL, 0, deadline_ns);

	if (n > 0)
		n = packet_receive(s->fd, &verdict, sizeof(verdict), &none, deadline_ns);
	s->is_lost = n == -ETIMEDOUT || (n > 0 && verdict == -EBADMSG);
	if (s->is_lost)
		return -EBADMSG;
	if (n == -EPIPE) /* says nothing of the agent */
		return -ECHILD;
	return n < 0 ? (int)n : verdict;
}

void scout_end(struct scout **s)
{
	struct scout *one = *s;

	*s = NULL;
	if (!one)
		return;
	/* Another child that has just been forked may have a copy. */
	shutdown(one->fd, SHUT_RDWR);
	close(one->fd);
	if (!one->is_lost && fd_wait(one->pid_fd, POLLIN, deadline_in_ms(PATIENCE_MS)) == 0)
		waitid((idtype_t)WAIT_PIDFD, (id_t)one->pid_fd, NULL, WEXITED | WNOHANG);
	close(one->pid_fd);
	free(one);
}
