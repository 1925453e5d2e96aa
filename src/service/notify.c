// SPDX-License-Identifier: MIT
/* Socket activation and readiness, as sd_listen_fds(3) and sd_notify(3) describe them. */
#include "service/notify.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"

enum { LISTEN_FD = 3 };

int notify_listen_fd(void)
{
	const char *pid = getenv("LISTEN_PID"), *n = getenv("LISTEN_FDS");

	if (!pid || !n || atol(pid) != getpid() || atoi(n) < 1)
		return -1;
	/* Not for the shims that are started from here. */
	unsetenv("LISTEN_PID");
	unsetenv("LISTEN_FDS");
	unsetenv("LISTEN_FDNAMES");
	if (fcntl(LISTEN_FD, F_SETFD, FD_CLOEXEC) < 0)
		return -1;
	return LISTEN_FD;
}

void notify_manager(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	size_t len = path ? strlen(path) : 0;

	if (len < 2 || len >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@'))
		return;
	memcpy(address.sun_path, path, len);
	if (address.sun_path[0] == '@')
		address.sun_path[0] = '\0';

	auto_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t address_len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (fd >= 0)
		(void)!sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address,
			      address_len);
}
