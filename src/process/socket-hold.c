// SPDX-License-Identifier: MIT
/* Filters that hold connections; see socket-hold.h. */
#include "process/socket-hold.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>

#include "process/socket-options.h"

/* The first instruction has no effect, and tells our filter from those of programs. */
static struct sock_filter holding[] = {
	{ BPF_LD | BPF_IMM, 0, 0, 0x6272756d },
	{ BPF_RET | BPF_K, 0, 0, 0 },
};
enum { N_HOLDING = sizeof(holding) / sizeof(holding[0]) };

static bool is_local(const struct sockaddr_storage *peer)
{
	const struct sockaddr_in6 *v6 = (const void *)peer;
	const struct sockaddr_in *v4 = (const void *)peer;

	if (peer->ss_family == AF_INET)
		return ntohl(v4->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
	       (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr) &&
		v6->sin6_addr.s6_addr[12] == IN_LOOPBACKNET);
}

/* A listening socket has no peer. One that is closing may still have bytes to deliver. */
static bool has_peer(int fd)
{
	struct sockaddr_storage peer;
	int domain = 0, protocol = 0;
	socklen_t len = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 ||
	    (domain != AF_INET && domain != AF_INET6) ||
	    getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) < 0 || protocol != IPPROTO_TCP)
		return false;
	len = sizeof(peer);
	return getpeername(fd, (struct sockaddr *)&peer, &len) == 0 && !is_local(&peer);
}

/* The number of instructions, of which @ret gets the first. <0: -errno. */
static int read_filter(struct sock_filter ret[static N_HOLDING], int fd)
{
	socklen_t n = 0;

	if (getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, NULL, &n) < 0)
		return -errno;
	if (n == N_HOLDING && getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, ret, &n) < 0)
		return -errno;
	return (int)n;
}

static bool is_ours(const struct sock_filter *filter, int n)
{
	return n == N_HOLDING && !memcmp(filter, holding, sizeof(holding));
}

struct holding_state {
	size_t n;
	struct brumate_error *err;
};

static int hold(void *arg, const struct proc_info *info, int number, int fd)
{
	const struct sock_fprog program = { .len = N_HOLDING, .filter = holding };
	struct sock_filter there[N_HOLDING];
	struct holding_state *s = arg;

	if (!has_peer(fd))
		return 0;
	int n = read_filter(there, fd);
	if (n > 0 && !is_ours(there, n)) {
		brumate_fail(s->err, EOPNOTSUPP,
			     "process %d (%s) has a connection with a filter of its own (fd %d), "
			     "so it cannot be held",
			     info->id.pid, info->comm, number);
		brumate_hint(s->err, "SO_DETACH_FILTER takes it off");
		return -EOPNOTSUPP;
	}
	if (n == 0 && setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) < 0)
		n = -errno;
	if (n < 0)
		return brumate_fail(s->err, -n,
				    "process %d (%s): its connection, fd %d, cannot be held: %s",
				    info->id.pid, info->comm, number, strerror(-n));
	s->n++;
	return 0;
}

int sockets_hold(size_t *ret_n, const struct proc_tree *tree, struct brumate_error *err)
{
	struct holding_state s = { .err = err };
	int r = sockets_each(tree, hold, &s);

	if (r == -ENOMEM)
		return brumate_fail(err, ENOMEM, "%m");
	*ret_n = s.n;
	return r;
}

static int let_go(void *arg, const struct proc_info *info, int number, int fd)
{
	struct sock_filter there[N_HOLDING];
	struct brumate_error **err = arg;
	int unused = 0;

	if (!has_peer(fd) || !is_ours(there, read_filter(there, fd)) ||
	    setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof(unused)) == 0 || !*err)
		return 0;
	brumate_fail(*err, errno, "process %d (%s): its connection, fd %d, stays held: %m",
		     info->id.pid, info->comm, number);
	*err = NULL; /* the first failure is the one reported */
	return 0;
}

int sockets_let_go(const struct proc_tree *tree, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE, *to = &why;
	int r = sockets_each(tree, let_go, &to);

	if (r == 0 && why.code) {
		if (err)
			*err = why;
		return -why.code;
	}
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}
