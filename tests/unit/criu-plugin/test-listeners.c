// SPDX-License-Identifier: MIT
/* A socket that was given by the name of an address takes the place of the one that would be bound there. */
#include "check.h"
#include "criu-plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int given_fd = -1;
static char given_key[HIDDEN_LISTENER_KEY_BYTES];

/* CRIU's, which gives a copy. */
int inherit_fd_lookup_id(char *id)
{
	return !strcmp(id, given_key) ? fcntl(given_fd, F_DUPFD_CLOEXEC, 0) : -1;
}

static struct sockaddr_in at(uint16_t port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons(port),
				     .sin_addr = { htonl(INADDR_LOOPBACK) } };
}

static int bind_to(int fd, const struct sockaddr_in *a)
{
	return bind(fd, (const struct sockaddr *)a, sizeof(*a)) < 0 ? -errno : 0;
}

static void test_key(void)
{
	const struct sockaddr_in v4 = at(80);
	const struct sockaddr_in6 v6 = { .sin6_family = AF_INET6,
					 .sin6_port = htons(8000),
					 .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	const struct sockaddr other = { .sa_family = AF_UNIX };
	char key[HIDDEN_LISTENER_KEY_BYTES];

	CHECK(listener_key(key, (const void *)&v4));
	CHECK_STR(key, "brumate-listener:127.0.0.1:80");
	CHECK(listener_key(key, (const void *)&v6));
	CHECK_STR(key, "brumate-listener:[::1]:8000");
	CHECK(!listener_key(key, &other));
}

static void test_taken_over(void)
{
	int held = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
	int datagrams = socket(AF_INET, SOCK_DGRAM, 0), one = 1, listens = 0;
	struct sockaddr_in a = at(0);
	socklen_t len = sizeof(a);

	CHECK(bind_to(held, &a) == 0 && listen(held, 8) == 0);
	CHECK(getsockname(held, (struct sockaddr *)&a, &len) == 0);
	CHECK(bind_to(fd, &a) == -EADDRINUSE);
	CHECK(setsockopt(held, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) == 0);
	if (!listeners_begin())
		SKIP("a program without imports by name");
	CHECK(bind_to(fd, &a) == -EADDRINUSE); /* nothing was given */
	given_fd = held;
	CHECK(listener_key(given_key, (const void *)&a));
	CHECK(bind_to(datagrams, &a) == 0);
	CHECK(fcntl(fd, F_SETFD, FD_CLOEXEC) == 0 && bind_to(fd, &a) == 0);
	listeners_end();
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && listen(fd, 16) == 0);
	len = sizeof(listens);
	close(held);
	CHECK(getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &len) == 0 && listens);
	close(fd);
	CHECK((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && bind_to(fd, &a) == 0);
}

int main(void)
{
	test_key();
	test_taken_over();
	return 0;
}
