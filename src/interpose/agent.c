// SPDX-License-Identifier: MIT
/*
 * The agent: one thread that listens on a socket in the job's directory and serves whoever is root or
 * the job's own user, one connection at a time. At rest it is blocked and its socket is all that we
 * have open in the process. A program that closes the socket ends the agent, and nothing else.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "interpose/agent-ops.h"

/* Out of the way of programs that count on low numbers or walk through them. */
enum { LISTEN_FD_MIN = 500, STACK_BYTES = 1 << 20 };

static atomic_int owner; /* the process the agent belongs to */
static atomic_bool managed;
static int listen_fd = -1;
static struct sockaddr_un address;

bool memory_managed(void)
{
	return atomic_load_explicit(&managed, memory_order_acquire);
}

/* The program may have closed our descriptor, and its number may be another file by now. */
static bool is_still_ours(void)
{
	struct sockaddr_un at = { 0 };
	socklen_t len = sizeof(at);

	return !getsockname(listen_fd, (struct sockaddr *)&at, &len) && at.sun_family == AF_UNIX &&
	       !strncmp(at.sun_path, address.sun_path, sizeof(at.sun_path));
}

static void close_fds(int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

/* Moves the descriptors of @msg to @ret; false if there are too many, which are closed. */
static bool take_fds(struct msghdr *msg, int ret[static AGENT_PIECES_MAX], size_t *ret_n)
{
	bool fits = !(msg->msg_flags & MSG_CTRUNC);

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(fd), sizeof(fd));
			if (*ret_n < AGENT_PIECES_MAX) {
				ret[(*ret_n)++] = fd;
			} else {
				close(fd);
				fits = false;
			}
		}
	}
	return fits;
}

/* 1: a request; 0: hung up, or not one. Whatever descriptors came are in @job. */
static int receive(int fd, struct agent_request *ret, struct agent_job *job)
{
	char control[CMSG_SPACE(sizeof(int) * AGENT_PIECES_MAX)];
	struct iovec iov = { ret, sizeof(*ret) };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = control,
			      .msg_controllen = sizeof(control) };
	ssize_t n;

	do
		n = recvmsg(fd, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return 0;
	if (!take_fds(&msg, job->fds, &job->n_fds) || msg.msg_flags & MSG_TRUNC)
		return 0;
	return (size_t)n >= offsetof(struct agent_request, ids) && ret->n <= AGENT_PIECES_MAX &&
	       (size_t)n >= offsetof(struct agent_request, ids) + ret->n * sizeof(ret->ids[0]);
}

static int send_reply(int fd, const struct agent_reply *reply, const int *fds, size_t n_fds)
{
	char control[CMSG_SPACE(sizeof(int) * AGENT_PIECES_MAX)] = { 0 };
	struct iovec iov = { (void *)reply, sizeof(*reply) };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (n_fds) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(sizeof(int) * n_fds);

		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * n_fds);
		memcpy(CMSG_DATA(c), fds, sizeof(int) * n_fds);
	}
	do
		n = sendmsg(fd, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* Serves one request. >0: go on; 0: hung up; <0: the peer said DETACH. */
static int serve_one(int fd)
{
	struct agent_request request = { 0 };
	struct agent_job job = { .request = &request };
	struct agent_reply reply;
	int r = receive(fd, &request, &job), sent = -EPIPE;
	size_t n_received = job.n_fds;

	while (r > 0) {
		bool more;

		memset(&reply, 0, sizeof(reply));
		reply.version = AGENT_VERSION;
		if (request.op == AGENT_EXPORT) {
			close_fds(job.fds, job.n_fds);
			job.n_fds = n_received = 0;
		}
		agent_run(&job, &reply);
		more = reply.more;
		sent = send_reply(fd, &reply, job.fds,
				  request.op == AGENT_EXPORT && !reply.error ? job.n_fds : 0);
		if (sent < 0 || !more)
			break;
	}
	close_fds(job.fds, job.n_fds > n_received ? job.n_fds : n_received);
	if (r > 0 && sent == 0 && request.op == AGENT_DETACH)
		return -1;
	return r > 0 && sent == 0;
}

static void serve(int fd)
{
	int r;

	do
		r = serve_one(fd);
	while (r > 0);
	if (!r)
		agent_hung_up();
}

static bool may_ask(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);

	return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) &&
	       (peer.uid == 0 || peer.uid == geteuid());
}

static void *run(void *arg)
{
	prctl(PR_SET_NAME, "brumate-agent");
	gate_exempt();
	while (is_still_ours()) {
		auto_close int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EMFILE ||
			       errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
			continue;
		if (fd < 0)
			break;
		if (may_ask(fd))
			serve(fd);
	}
	return NULL;
}

/* The highest number there may be is below LISTEN_FD_MIN in tight places. */
static int move_high(int fd)
{
	int high = fcntl(fd, F_DUPFD_CLOEXEC, LISTEN_FD_MIN);

	if (high < 0)
		return fd;
	close(fd);
	return high;
}

static int listen_at(const char *dir)
{
	auto_close int fd = -1;
	int n;

	address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	n = snprintf(address.sun_path, sizeof(address.sun_path), "%s/%d", dir, (int)getpid());
	if (n < 0 || (size_t)n >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	/* The mode of the socket is that of the file to be: nobody else gets in before a chmod. */
	if (fd < 0 || fchmod(fd, 0600) < 0)
		return -errno;
	fd = move_high(take_fd(&fd));
	unlink(address.sun_path);
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0 || listen(fd, 8) < 0)
		return -errno;
	listen_fd = take_fd(&fd);
	return 0;
}

static int start_thread(void)
{
	sigset_t all, old;
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, &attr, run, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

void agent_start(void)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE);
	int nobody = 0, saved = errno;

	if (!dir || !*dir || !atomic_compare_exchange_strong(&owner, &nobody, (int)getpid()))
		return;
	if (listen_at(dir) < 0) {
		errno = saved;
		return;
	}
	atomic_store_explicit(&managed, true, memory_order_release);
	if (start_thread() < 0) {
		atomic_store(&managed, false);
		unlink(address.sun_path);
		close(listen_fd);
	}
	errno = saved;
}

void agent_forget(void)
{
	if (listen_fd >= 0 && is_still_ours())
		close(listen_fd);
	listen_fd = -1;
	atomic_store(&managed, false);
	atomic_store(&owner, 0);
}
