// SPDX-License-Identifier: MIT
/* Sending and receiving of packets. See packet.h. */
#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/fd-pass.h"
#include "interpose/packet.h"

union control {
	struct cmsghdr align;
	char space[FD_PASS_BYTES(AGENT_PIECES_MAX)];
};

void packet_close_fds(const int *fds, size_t n_fds)
{
	for (size_t i = 0; i < n_fds; i++)
		close(fds[i]);
}

int packet_send(int socket, const void *buf, size_t len_bytes, const int *fds, size_t n_fds)
{
	union control control = { 0 };
	struct iovec iov = { (void *)buf, len_bytes };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t n;

	if (n_fds)
		fd_pass_put(&msg, &control, fds, n_fds);
	do
		n = sendmsg(socket, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : 0;
}

/* Moves the descriptors of @msg to @ret; false if there are too many. */
static bool take_fds(struct msghdr *msg, int ret[static AGENT_PIECES_MAX], size_t *ret_n)
{
	size_t n = fd_pass_take(msg, ret, AGENT_PIECES_MAX);

	*ret_n = n < AGENT_PIECES_MAX ? n : AGENT_PIECES_MAX;
	return n == *ret_n && !(msg->msg_flags & MSG_CTRUNC);
}

ssize_t packet_receive(int socket, void *buf, size_t room_bytes, int fds[static AGENT_PIECES_MAX],
		       size_t *ret_n_fds)
{
	union control control;
	struct iovec iov = { buf, room_bytes };
	struct msghdr msg = { .msg_iov = &iov,
			      .msg_iovlen = 1,
			      .msg_control = &control,
			      .msg_controllen = sizeof(control) };
	ssize_t n;

	*ret_n_fds = 0;
	do
		n = recvmsg(socket, &msg, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return take_fds(&msg, fds, ret_n_fds) && !(msg.msg_flags & MSG_TRUNC) ? n : -EMSGSIZE;
}
