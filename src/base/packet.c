// SPDX-License-Identifier: MIT
/* See packet.h. */
#include "base/packet.h"
#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* With less room, the kernel drops some descriptors silently. */
union control {
	struct cmsghdr header;
	char space[CMSG_SPACE(PACKET_FDS_KERNEL_MAX * sizeof(int))];
};

void packet_close_fds(const int *fds, size_t n)
{
	for (size_t i = 0; i < n; i++)
		close(fds[i]);
}

static void put_fds(struct msghdr *msg, union control *control, const int *fds, size_t n)
{
	struct cmsghdr *c = &control->header;

	memset(control, 0, CMSG_SPACE(n * sizeof(int)));
	msg->msg_control = control;
	msg->msg_controllen = CMSG_SPACE(n * sizeof(int));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n * sizeof(int));
}

/* Takes as many as @ret has room for; closes the others. */
static void take_fds(struct msghdr *msg, struct packet_fds *ret)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (ret->n < ret->room) {
				ret->items[ret->n++] = fd;
			} else {
				ret->state = PACKET_TOO_LONG;
				close(fd);
			}
		}
	}
}

/* After a call that failed: returns 0 if it should be repeated, else -errno. */
static int wait_to_retry(int socket_fd, short events, uint64_t deadline_ns)
{
	if (errno == EINTR)
		return 0;
	if (errno == EAGAIN)
		return fd_wait(socket_fd, events, deadline_ns);
	return errno == ECONNRESET || errno == ENOTCONN ? -EPIPE : -errno;
}

/* unix(7): all that our user has sent and nobody has received yet counts against the sender's RLIMIT_NOFILE, also what
 * other programs of his have sent. No event says when some has arrived; a peer that ends ends the next try. */
static int wait_for_arrivals(uint64_t deadline_ns)
{
	const struct timespec pause = { .tv_nsec = 5 * NS_PER_MS };

	if (deadline_left_ms(deadline_ns) == 0)
		return -ETIMEDOUT;
	nanosleep(&pause, NULL);
	return 0;
}

/* Without a deadline the call itself waits, unless the socket is non-blocking. */
static int flags_for(uint64_t deadline_ns)
{
	return deadline_ns == DEADLINE_NEVER ? 0 : MSG_DONTWAIT;
}

ssize_t packet_send(int socket_fd, const void *buf, size_t len_bytes, const int *fds, size_t n_fds,
		    uint64_t deadline_ns)
{
	struct iovec iov = { (void *)(uintptr_t)buf, len_bytes };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	union control control;
	int r = 0;

	if (n_fds > PACKET_FDS_MAX)
		return -EINVAL;
	if (n_fds)
		put_fds(&msg, &control, fds, n_fds);
	while (r == 0) {
		ssize_t n = sendmsg(socket_fd, &msg, MSG_NOSIGNAL | flags_for(deadline_ns));

		if (n >= 0)
			return n;
		r = errno == ETOOMANYREFS ? wait_for_arrivals(deadline_ns)
					  : wait_to_retry(socket_fd, POLLOUT, deadline_ns);
	}
	return r;
}

static ssize_t receive(int socket_fd, struct iovec iov, int flags, struct packet_fds *fds,
		       uint64_t deadline_ns)
{
	union control control;
	/* Without room for descriptors, the kernel drops its references and closes nothing here. */
	const bool has_room = fds->room || !(flags & MSG_PEEK);
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = has_room ? &control : NULL };
	ssize_t n;
	int r;

	fds->n = 0;
	fds->state = PACKET_WHOLE;
	do {
		msg.msg_controllen = has_room ? sizeof(control) : 0;
		n = recvmsg(socket_fd, &msg, MSG_CMSG_CLOEXEC | flags | flags_for(deadline_ns));
		r = n > 0 ? 0 : -EPIPE;
		/* unix(7): the peer was closed with unread bytes, or before it accepted the connection. */
		if (n < 0 && errno == ECONNRESET)
			fds->state = PACKET_UNREAD;
		if (n < 0)
			r = wait_to_retry(socket_fd, POLLIN, deadline_ns);
	} while (n < 0 && r == 0);
	if (r < 0)
		return r;
	take_fds(&msg, fds);
	if (msg.msg_flags & MSG_TRUNC && !(flags & MSG_PEEK))
		fds->state = PACKET_TOO_LONG;
	if (msg.msg_flags & MSG_CTRUNC)
		fds->state = PACKET_LOST_FDS;
	return n;
}

ssize_t packet_receive(int socket_fd, void *buf, size_t room_bytes, struct packet_fds *fds,
		       uint64_t deadline_ns)
{
	return receive(socket_fd, (struct iovec){ buf, room_bytes }, 0, fds, deadline_ns);
}

int packet_peek(int socket_fd, struct packet_fds *fds, uint64_t deadline_ns)
{
	char byte;
	ssize_t n = receive(socket_fd, (struct iovec){ &byte, 1 }, MSG_PEEK, fds, deadline_ns);

	return n < 0 ? (int)n : 0;
}
