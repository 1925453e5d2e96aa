// SPDX-License-Identifier: MIT
/* Sockets that went on listening while their job was on disk; see plugin.h. */
#include "criu-plugin/plugin.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int (*real_bind)(int fd, const struct sockaddr *address, socklen_t len);

bool listener_key(char ret[static HIDDEN_LISTENER_KEY_BYTES], const struct sockaddr *address)
{
	const struct sockaddr_in *v4 = (const void *)address;
	const struct sockaddr_in6 *v6 = (const void *)address;
	const bool is_v6 = address->sa_family == AF_INET6;
	char host[INET6_ADDRSTRLEN];

	if ((!is_v6 && address->sa_family != AF_INET) ||
	    !inet_ntop(address->sa_family, is_v6 ? (const void *)&v6->sin6_addr : &v4->sin_addr,
		       host, sizeof(host)))
		return false;
	snprintf(ret, HIDDEN_LISTENER_KEY_BYTES,
		 is_v6 ? HIDDEN_LISTENER_KEY "[%s]:%u" : HIDDEN_LISTENER_KEY "%s:%u", host,
		 ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
	return true;
}

/* Datagrams may have the same address. */
static bool is_stream(int fd)
{
	int type = 0;
	socklen_t len = sizeof(type);

	return getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_STREAM;
}

/* What CRIU does next to its new socket, it does to the one that is there; to listen once more only sets the backlog. */
static int our_bind(int fd, const struct sockaddr *address, socklen_t len)
{
	char key[HIDDEN_LISTENER_KEY_BYTES];
	int held = -1;

	if (inherit_fd_lookup_id && listener_key(key, address) && is_stream(fd))
		held = inherit_fd_lookup_id(key);
	if (held < 0)
		return real_bind(fd, address, len);
	const int flags = fcntl(fd, F_GETFD);
	int r = flags < 0 ? -1 : dup3(held, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
	const int code = errno;

	close(held);
	errno = code;
	return r < 0 ? -1 : 0;
}

bool listeners_begin(void)
{
	if (!real_bind)
		real_bind = import_replace("bind", (void *)our_bind);
	return real_bind;
}

void listeners_end(void)
{
	if (real_bind)
		import_replace("bind", (void *)real_bind);
	real_bind = NULL;
}
