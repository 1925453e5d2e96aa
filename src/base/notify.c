// SPDX-License-Identifier: MIT
/* Datagrams to the service manager. See notify.h. */
#include "base/notify.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"

/* Its length; 0: there is none. */
static socklen_t find_manager(struct sockaddr_un *ret)
{
	const char *path = getenv("NOTIFY_SOCKET");
	const size_t len = path ? strlen(path) : 0;

	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	if (len < 2 || len >= sizeof(ret->sun_path) || (path[0] != '/' && path[0] != '@'))
		return 0;
	memcpy(ret->sun_path, path, len);
	if (ret->sun_path[0] == '@')
		ret->sun_path[0] = '\0';
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

bool notify_is_wanted(void)
{
	struct sockaddr_un address;

	return find_manager(&address);
}

int notify_manager(const char *state, const int *fds, size_t n)
{
	union {
		struct cmsghdr header;
		char room[CMSG_SPACE(NOTIFY_FDS_MAX * sizeof(int))];
	} control = { .room = { 0 } };
	struct sockaddr_un address;
	struct iovec text = { .iov_base = (char *)state, .iov_len = strlen(state) };
	struct msghdr message = { .msg_name = &address,
				  .msg_namelen = find_manager(&address),
				  .msg_iov = &text,
				  .msg_iovlen = 1 };

	if (!message.msg_namelen)
		return -ENOENT;
	if (n > NOTIFY_FDS_MAX)
		return -E2BIG;
	if (n) {
		message.msg_control = &control;
		message.msg_controllen = CMSG_SPACE(n * sizeof(int));
		control.header = (struct cmsghdr){ .cmsg_level = SOL_SOCKET,
						   .cmsg_type = SCM_RIGHTS,
						   .cmsg_len = CMSG_LEN(n * sizeof(int)) };
		memcpy(CMSG_DATA(&control.header), fds, n * sizeof(int));
	}
	auto_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return -errno;
	return 0;
}
