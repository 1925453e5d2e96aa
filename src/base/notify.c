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
#include "base/clock.h"
#include "base/packet.h"

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
	struct sockaddr_un address;
	const socklen_t len = find_manager(&address);

	if (!len)
		return -ENOENT;
	auto_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, len) < 0)
		return -errno;
	ssize_t sent = packet_send(fd, state, strlen(state), fds, n, deadline_in_ms(0));
	return sent < 0 ? (int)sent : 0;
}
