// SPDX-License-Identifier: MIT
/* See fd-pass.h. */
#include "base/fd-pass.h"

#include <string.h>
#include <unistd.h>

void fd_pass_put(struct msghdr *msg, void *control, const int *fds, size_t n_fds)
{
	struct cmsghdr *c = control;

	msg->msg_control = control;
	msg->msg_controllen = FD_PASS_BYTES(n_fds);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
	memcpy(CMSG_DATA(c), fds, n_fds * sizeof(int));
}

size_t fd_pass_take(struct msghdr *msg, int *ret, size_t room)
{
	size_t n = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t here = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

		for (size_t i = 0; i < here; i++, n++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (n < room)
				ret[n] = fd;
			else
				close(fd);
		}
	}
	return n;
}
