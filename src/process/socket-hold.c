// SPDX-License-Identifier: MIT
/* Filters that hold connections; see socket-hold.h. */
#include "process/socket-hold.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/escape.h"
#include "process/socket-options.h"

/* The first instruction has no effect, and tells our filter from those of programs. */
static struct sock_filter holding[] = {
	{ BPF_LD | BPF_IMM, 0, 0, 0x6272756d },
	{ BPF_RET | BPF_K, 0, 0, 0 },
};
enum { N_HOLDING = sizeof(holding) / sizeof(holding[0]) };

/* A listening socket has no peer. One that is closing may still have bytes to deliver. */
static bool has_peer(int fd, struct sockaddr_storage *ret_peer)
{
	int domain = 0, protocol = 0;
	socklen_t len = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 ||
	    (domain != AF_INET && domain != AF_INET6) ||
	    getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &len) < 0 || protocol != IPPROTO_TCP)
		return false;
	len = sizeof(*ret_peer);
	return getpeername(fd, (struct sockaddr *)ret_peer, &len) == 0;
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
	struct sockaddr_storage peer;

	if (!has_peer(fd, &peer))
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
	struct sockaddr_storage peer;
	int unused = 0;

	if (!has_peer(fd, &peer) || !is_ours(there, read_filter(there, fd)) ||
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

/* ---- what they are connected to ---- */

/* Of a loopback address: what else has it is another machine's, or another namespace's. */
static void append_place(char *ret, size_t room, int fd)
{
	char boot[PROC_BOOT_ID_BYTES];
	uint64_t cookie = 0;
	socklen_t len = sizeof(cookie);

	if (proc_boot_id(boot) < 0)
		snprintf(boot, sizeof(boot), "?");
	getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie,
		   &len); /* before Linux 5.14 there is none */
	snprintf(ret + strlen(ret), room - strlen(ret), "@%s.%" PRIu64, boot, cookie);
}

/* Both ends write an address alike: one of IPv4 in IPv6 is one of IPv4, and the interface of a link-local one, which each
 * machine numbers for itself, is not of it. @place_of: -1, or the socket whose place a loopback address gets. */
static void write_address(char ret[static SOCKET_END_BYTES], const struct sockaddr_storage *a,
			  int place_of)
{
	const struct sockaddr_in6 *v6 = (const void *)a;
	const struct sockaddr_in *v4 = (const void *)a;
	const bool is_v6 = a->ss_family == AF_INET6;
	const bool is_mapped = is_v6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
	const void *raw = is_mapped ? (const void *)&v6->sin6_addr.s6_addr[12]
			  : is_v6   ? (const void *)&v6->sin6_addr
				    : (const void *)&v4->sin_addr;
	const bool is_plain_v6 = is_v6 && !is_mapped;
	char text[INET6_ADDRSTRLEN] = "";

	inet_ntop(is_plain_v6 ? AF_INET6 : AF_INET, raw, text, sizeof(text));
	snprintf(ret, SOCKET_END_BYTES, is_plain_v6 ? "[%s]:%u" : "%s:%u", text,
		 ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
	const bool is_loopback = is_plain_v6 ? IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr)
					     : *(const uint8_t *)raw == IN_LOOPBACKNET;
	if (is_loopback && place_of >= 0)
		append_place(ret, SOCKET_END_BYTES, place_of);
}

static bool read_ends(char ret_local[static SOCKET_END_BYTES],
		      char ret_peer[static SOCKET_END_BYTES], int fd, bool with_place)
{
	struct sockaddr_storage local, peer;
	socklen_t len = sizeof(local);

	if (!has_peer(fd, &peer) || getsockname(fd, (struct sockaddr *)&local, &len) < 0)
		return false;
	write_address(ret_local, &local, with_place ? fd : -1);
	write_address(ret_peer, &peer, with_place ? fd : -1);
	return true;
}

/* Where the other end has sent its last byte, it may be gone: what is left to be read is here. */
static bool may_receive(int fd)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);

	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
	       info.tcpi_state == TCP_ESTABLISHED || info.tcpi_state == TCP_FIN_WAIT1 ||
	       info.tcpi_state == TCP_FIN_WAIT2;
}

static int list(void *arg, const struct proc_info *info, int number, int fd)
{
	char local[SOCKET_END_BYTES], peer[SOCKET_END_BYTES];

	if (!read_ends(local, peer, fd, true))
		return 0;
	auto_free char *comm = text_escape(info->comm, sizeof(info->comm));
	fprintf(arg, "%s %s %s process %d (%s), fd %d\n", may_receive(fd) ? "open" : "ended", local,
		peer, info->id.pid, comm ? comm : "", number);
	return 0;
}

int sockets_list(char **ret, const struct proc_tree *tree)
{
	auto_free char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);
	int r = f ? sockets_each(tree, list, f) : -ENOMEM;

	if (f && fclose(f) != 0)
		r = -ENOMEM;
	if (r == 0)
		*ret = take_ptr(&text);
	return r;
}

struct closing_state {
	const char *ends;
	size_t n;
};

/* To be connected to nothing is to be reset: who reads or writes gets ECONNRESET, at once. */
static int close_one(void *arg, const struct proc_info *info, int number, int fd)
{
	const struct sockaddr nothing = { .sa_family = AF_UNSPEC };
	char local[SOCKET_END_BYTES], peer[SOCKET_END_BYTES], line[2 * SOCKET_END_BYTES + 3];
	struct closing_state *s = arg;

	(void)info;
	(void)number;
	if (!read_ends(local, peer, fd, false))
		return 0;
	snprintf(line, sizeof(line), "\n%s %s\n", local, peer);
	if (!strstr(s->ends, line))
		return 0;
	if (connect(fd, &nothing, sizeof(nothing)) < 0)
		return -errno;
	s->n++;
	return 0;
}

int sockets_close(size_t *ret_n, const struct proc_tree *tree, const char *ends,
		  struct brumate_error *err)
{
	struct closing_state s = { .ends = ends };
	int r = sockets_each(tree, close_one, &s);

	*ret_n = s.n;
	return r < 0 ? brumate_fail(err, -r, "a connection cannot be closed: %m") : 0;
}
