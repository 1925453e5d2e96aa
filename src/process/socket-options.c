// SPDX-License-Identifier: MIT
/* Options of sockets, read and set through copies of their descriptors; see socket-options.h. */
#include "process/socket-options.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/array.h"
#include "base/hex.h"
#include "base/user.h"

#define HEADING "brumate sockets 1\n"

enum { GROUPS_BYTES_MAX = 16 << 20 };
enum family { ANY, UNIX, INET, INET6 };
enum type { ALL, STREAM, DGRAM };

/* Not an option: the abstract name of a unix socket that is connected, such as the kernel chooses for one with SO_PASSCRED. */
enum { OWN_NAME = -1 };

/* Numbers that older headers lack. */
enum {
	PASS_PIDFD = 76,
	RECEIVE_PRIORITY = 82,
	PASS_RIGHTS = 83,
	LOCAL_PORT_RANGE = 51,
	SEND_FLOWINFO = 33,
	UDP_OPTION_CORK = 1,
	UDP_OPTION_SEGMENT = 103,
	UDP_OPTION_GRO = 104,
	UDP_OPTION_NO_CHECK6_TX = 101,
	UDP_OPTION_NO_CHECK6_RX = 102,
};

/* Those that a new socket has not, and CRIU does not give it: they are written down where they are set. */
enum { IF_SET = true };

/* What can be read and set alike, on any kernel that knows it. Not: sizes of buffers, which CRIU brings back by other
 * options; filters; what is decided once and for all before bind(2). */
static const struct known_option {
	int level, name;
	enum family family;
	enum type type;
	const char *text;
	bool only_if_set;
} known[] = {
	{ SOL_SOCKET, SO_REUSEADDR, ANY, ALL, "SO_REUSEADDR" },
	{ SOL_SOCKET, SO_DONTROUTE, ANY, ALL, "SO_DONTROUTE" },
	{ SOL_SOCKET, SO_BROADCAST, ANY, ALL, "SO_BROADCAST" },
	{ SOL_SOCKET, SO_KEEPALIVE, ANY, ALL, "SO_KEEPALIVE" },
	{ SOL_SOCKET, SO_OOBINLINE, ANY, ALL, "SO_OOBINLINE" },
	{ SOL_SOCKET, SO_NO_CHECK, INET, ALL, "SO_NO_CHECK" },
	{ SOL_SOCKET, SO_PRIORITY, ANY, ALL, "SO_PRIORITY" },
	{ SOL_SOCKET, SO_LINGER, ANY, ALL, "SO_LINGER" },
	{ SOL_SOCKET, SO_REUSEPORT, ANY, ALL, "SO_REUSEPORT" },
	{ SOL_SOCKET, SO_PASSCRED, UNIX, ALL, "SO_PASSCRED" },
	{ SOL_SOCKET, OWN_NAME, UNIX, ALL, "its name" },
	{ SOL_SOCKET, SO_PASSSEC, UNIX, ALL, "SO_PASSSEC" },
	{ SOL_SOCKET, SO_RCVLOWAT, ANY, ALL, "SO_RCVLOWAT" },
	{ SOL_SOCKET, SO_RCVTIMEO, ANY, ALL, "SO_RCVTIMEO" },
	{ SOL_SOCKET, SO_SNDTIMEO, ANY, ALL, "SO_SNDTIMEO" },
	{ SOL_SOCKET, SO_TIMESTAMP, ANY, ALL, "SO_TIMESTAMP" },
	{ SOL_SOCKET, SO_TIMESTAMPNS, ANY, ALL, "SO_TIMESTAMPNS" },
	{ SOL_SOCKET, SO_MARK, ANY, ALL, "SO_MARK" },
	{ SOL_SOCKET, SO_RXQ_OVFL, ANY, DGRAM, "SO_RXQ_OVFL" },
	{ SOL_SOCKET, SO_PEEK_OFF, ANY, ALL, "SO_PEEK_OFF" },
	{ SOL_SOCKET, SO_BUSY_POLL, ANY, ALL, "SO_BUSY_POLL" },
	{ SOL_SOCKET, SO_MAX_PACING_RATE, INET, ALL, "SO_MAX_PACING_RATE" },
	{ SOL_SOCKET, SO_ZEROCOPY, INET, ALL, "SO_ZEROCOPY" },
	{ IPPROTO_IP, IP_TOS, INET, ALL, "IP_TOS" },
	{ IPPROTO_IP, IP_TTL, INET, ALL, "IP_TTL" },
	{ IPPROTO_IP, IP_PKTINFO, INET, ALL, "IP_PKTINFO" },
	{ IPPROTO_IP, IP_MTU_DISCOVER, INET, ALL, "IP_MTU_DISCOVER" },
	{ IPPROTO_IP, IP_RECVERR, INET, ALL, "IP_RECVERR" },
	{ IPPROTO_IP, IP_RECVTTL, INET, DGRAM, "IP_RECVTTL" },
	{ IPPROTO_IP, IP_RECVTOS, INET, DGRAM, "IP_RECVTOS" },
	{ IPPROTO_IP, IP_FREEBIND, INET, ALL, "IP_FREEBIND" },
	{ IPPROTO_IP, IP_MINTTL, INET, ALL, "IP_MINTTL" },
	{ IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, INET, ALL, "IP_BIND_ADDRESS_NO_PORT" },
	{ IPPROTO_IP, IP_MULTICAST_TTL, INET, DGRAM, "IP_MULTICAST_TTL" },
	{ IPPROTO_IP, IP_MULTICAST_LOOP, INET, DGRAM, "IP_MULTICAST_LOOP" },
	{ IPPROTO_IP, IP_MULTICAST_ALL, INET, DGRAM, "IP_MULTICAST_ALL" },
	{ IPPROTO_IPV6, IPV6_UNICAST_HOPS, INET6, ALL, "IPV6_UNICAST_HOPS" },
	{ IPPROTO_IPV6, IPV6_MULTICAST_IF, INET6, DGRAM, "IPV6_MULTICAST_IF" },
	{ IPPROTO_IPV6, IPV6_MULTICAST_HOPS, INET6, DGRAM, "IPV6_MULTICAST_HOPS" },
	{ IPPROTO_IPV6, IPV6_MULTICAST_LOOP, INET6, DGRAM, "IPV6_MULTICAST_LOOP" },
	{ IPPROTO_IPV6, IPV6_MTU_DISCOVER, INET6, ALL, "IPV6_MTU_DISCOVER" },
	{ IPPROTO_IPV6, IPV6_RECVERR, INET6, ALL, "IPV6_RECVERR" },
	{ IPPROTO_IPV6, IPV6_RECVPKTINFO, INET6, DGRAM, "IPV6_RECVPKTINFO" },
	{ IPPROTO_IPV6, IPV6_RECVHOPLIMIT, INET6, DGRAM, "IPV6_RECVHOPLIMIT" },
	{ IPPROTO_IPV6, IPV6_RECVTCLASS, INET6, DGRAM, "IPV6_RECVTCLASS" },
	{ IPPROTO_IPV6, IPV6_TCLASS, INET6, ALL, "IPV6_TCLASS" },
	{ SOL_SOCKET, SO_TIMESTAMPING, ANY, ALL, "SO_TIMESTAMPING", IF_SET },
	{ SOL_SOCKET, SO_SELECT_ERR_QUEUE, ANY, ALL, "SO_SELECT_ERR_QUEUE", IF_SET },
	{ SOL_SOCKET, SO_NOFCS, ANY, ALL, "SO_NOFCS", IF_SET },
	{ SOL_SOCKET, SO_RCVMARK, ANY, ALL, "SO_RCVMARK", IF_SET },
	{ SOL_SOCKET, RECEIVE_PRIORITY, ANY, ALL, "SO_RCVPRIORITY", IF_SET },
	{ SOL_SOCKET, SO_PREFER_BUSY_POLL, ANY, ALL, "SO_PREFER_BUSY_POLL", IF_SET },
	{ SOL_SOCKET, SO_BUSY_POLL_BUDGET, ANY, ALL, "SO_BUSY_POLL_BUDGET", IF_SET },
	{ SOL_SOCKET, PASS_PIDFD, UNIX, ALL, "SO_PASSPIDFD", IF_SET },
	{ SOL_SOCKET, PASS_RIGHTS, UNIX, ALL, "SO_PASSRIGHTS" },
	{ SOL_SOCKET, SO_TXREHASH, INET, STREAM, "SO_TXREHASH" },
	{ IPPROTO_IP, LOCAL_PORT_RANGE, INET, ALL, "IP_LOCAL_PORT_RANGE", IF_SET },
	{ IPPROTO_IP, IP_UNICAST_IF, INET, ALL, "IP_UNICAST_IF", IF_SET },
	{ IPPROTO_IP, IP_RECVORIGDSTADDR, INET, ALL, "IP_RECVORIGDSTADDR", IF_SET },
	{ IPPROTO_IP, IP_CHECKSUM, INET, ALL, "IP_CHECKSUM", IF_SET },
	{ IPPROTO_IP, IP_RETOPTS, INET, ALL, "IP_RETOPTS", IF_SET },
	{ IPPROTO_IP, IP_PASSSEC, INET, ALL, "IP_PASSSEC", IF_SET },
	{ IPPROTO_IP, IP_RECVFRAGSIZE, INET, ALL, "IP_RECVFRAGSIZE", IF_SET },
	{ IPPROTO_IP, IP_RECVERR_RFC4884, INET, ALL, "IP_RECVERR_RFC4884", IF_SET },
	{ IPPROTO_IPV6, SEND_FLOWINFO, INET6, ALL, "IPV6_FLOWINFO_SEND", IF_SET },
	{ IPPROTO_IPV6, IPV6_UNICAST_IF, INET6, ALL, "IPV6_UNICAST_IF", IF_SET },
	{ IPPROTO_IPV6, IPV6_MINHOPCOUNT, INET6, ALL, "IPV6_MINHOPCOUNT", IF_SET },
	{ IPPROTO_IPV6, IPV6_DONTFRAG, INET6, ALL, "IPV6_DONTFRAG", IF_SET },
	{ IPPROTO_IPV6, IPV6_RECVPATHMTU, INET6, ALL, "IPV6_RECVPATHMTU", IF_SET },
	{ IPPROTO_IPV6, IPV6_RECVORIGDSTADDR, INET6, ALL, "IPV6_RECVORIGDSTADDR", IF_SET },
	{ IPPROTO_IPV6, IPV6_RECVRTHDR, INET6, ALL, "IPV6_RECVRTHDR", IF_SET },
	{ IPPROTO_IPV6, IPV6_RECVHOPOPTS, INET6, ALL, "IPV6_RECVHOPOPTS", IF_SET },
	{ IPPROTO_IPV6, IPV6_RECVDSTOPTS, INET6, ALL, "IPV6_RECVDSTOPTS", IF_SET },
	{ IPPROTO_IPV6, IPV6_RECVFRAGSIZE, INET6, ALL, "IPV6_RECVFRAGSIZE", IF_SET },
	{ IPPROTO_IPV6, IPV6_RECVERR_RFC4884, INET6, ALL, "IPV6_RECVERR_RFC4884", IF_SET },
	{ IPPROTO_IPV6, IPV6_MULTICAST_ALL, INET6, DGRAM, "IPV6_MULTICAST_ALL" },
	{ IPPROTO_IPV6, IPV6_ADDR_PREFERENCES, INET6, ALL, "IPV6_ADDR_PREFERENCES" },
	{ IPPROTO_UDP, UDP_OPTION_CORK, INET, DGRAM, "UDP_CORK", IF_SET },
	{ IPPROTO_UDP, UDP_OPTION_SEGMENT, INET, DGRAM, "UDP_SEGMENT", IF_SET },
	{ IPPROTO_UDP, UDP_OPTION_GRO, INET, DGRAM, "UDP_GRO", IF_SET },
	{ IPPROTO_UDP, UDP_OPTION_NO_CHECK6_TX, INET, DGRAM, "UDP_NO_CHECK6_TX", IF_SET },
	{ IPPROTO_UDP, UDP_OPTION_NO_CHECK6_RX, INET, DGRAM, "UDP_NO_CHECK6_RX", IF_SET },
	{ IPPROTO_TCP, TCP_DEFER_ACCEPT, INET, STREAM, "TCP_DEFER_ACCEPT", IF_SET },
	{ IPPROTO_TCP, TCP_FASTOPEN, INET, STREAM, "TCP_FASTOPEN", IF_SET },
	{ IPPROTO_TCP, TCP_FASTOPEN_NO_COOKIE, INET, STREAM, "TCP_FASTOPEN_NO_COOKIE", IF_SET },
	{ IPPROTO_TCP, TCP_SAVE_SYN, INET, STREAM, "TCP_SAVE_SYN", IF_SET },
	{ IPPROTO_TCP, TCP_TX_DELAY, INET, STREAM, "TCP_TX_DELAY", IF_SET },
	{ IPPROTO_TCP, TCP_MAXSEG, INET, STREAM, "TCP_MAXSEG" },
	/* Memberships in multicast groups, of which there may be several, and which are asked for in another way. */
	{ IPPROTO_IP, IP_ADD_MEMBERSHIP, INET, DGRAM, "IP_ADD_MEMBERSHIP" },
	{ IPPROTO_IPV6, IPV6_JOIN_GROUP, INET6, DGRAM, "IPV6_JOIN_GROUP" },
	{ IPPROTO_TCP, TCP_NODELAY, INET, STREAM, "TCP_NODELAY" },
	{ IPPROTO_TCP, TCP_CORK, INET, STREAM, "TCP_CORK" },
	{ IPPROTO_TCP, TCP_KEEPIDLE, INET, STREAM, "TCP_KEEPIDLE" },
	{ IPPROTO_TCP, TCP_KEEPINTVL, INET, STREAM, "TCP_KEEPINTVL" },
	{ IPPROTO_TCP, TCP_KEEPCNT, INET, STREAM, "TCP_KEEPCNT" },
	{ IPPROTO_TCP, TCP_SYNCNT, INET, STREAM, "TCP_SYNCNT" },
	{ IPPROTO_TCP, TCP_LINGER2, INET, STREAM, "TCP_LINGER2" },
	{ IPPROTO_TCP, TCP_CONGESTION, INET, STREAM, "TCP_CONGESTION" },
	{ IPPROTO_TCP, TCP_USER_TIMEOUT, INET, STREAM, "TCP_USER_TIMEOUT" },
	{ IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, INET, STREAM, "TCP_THIN_LINEAR_TIMEOUTS" },
	{ IPPROTO_TCP, TCP_NOTSENT_LOWAT, INET, STREAM, "TCP_NOTSENT_LOWAT" },
	{ IPPROTO_TCP, TCP_INQ, INET, STREAM, "TCP_INQ" },
};
enum { N_KNOWN = sizeof(known) / sizeof(known[0]) };

void socket_options_fini(struct socket_options *o)
{
	free(o->items);
	*o = SOCKET_OPTIONS_EMPTY;
}

/* ---- reading ---- */

static bool applies(const struct known_option *k, int domain, int type)
{
	const bool is_inet = domain == AF_INET || domain == AF_INET6;

	if (k->type != ALL && (k->type == STREAM) != (type == SOCK_STREAM))
		return false;
	switch (k->family) {
	case UNIX:
		return domain == AF_UNIX;
	case INET:
		return is_inet;
	case INET6:
		return domain == AF_INET6;
	default:
		return is_inet || domain == AF_UNIX;
	}
}

static bool is_connected(int fd)
{
	struct sockaddr_storage peer;
	socklen_t len = sizeof(peer);

	return getpeername(fd, (struct sockaddr *)&peer, &len) == 0;
}

static bool is_set(const struct socket_option *s)
{
	for (size_t i = 0; i < s->len_bytes; i++)
		if (s->value[i])
			return true;
	return false;
}

static bool get_name(struct socket_option *ret, int fd)
{
	union {
		struct sockaddr_un name;
		struct sockaddr any;
	} own;
	socklen_t len = sizeof(own);

	if (getsockname(fd, &own.any, &len) < 0 || len > sizeof(ret->value) ||
	    len <= offsetof(struct sockaddr_un, sun_path) || own.name.sun_path[0] ||
	    !is_connected(fd))
		return false;
	memcpy(ret->value, &own, len);
	ret->len_bytes = len;
	return true;
}

static bool get(struct socket_option *ret, int fd, const struct known_option *k)
{
	socklen_t len = sizeof(ret->value);

	*ret = (struct socket_option){ .level = k->level, .name = k->name };
	if (k->name == OWN_NAME)
		return get_name(ret, fd);
	if (k->level == IPPROTO_TCP && k->name == TCP_MAXSEG && is_connected(fd))
		return false; /* it is that of the connection */
	if (getsockopt(fd, k->level, k->name, ret->value, &len) < 0)
		return false;
	ret->len_bytes = len;
	return true;
}

/* ---- memberships in multicast groups ---- */

/* Whether the socket is in the group, without a choice among senders. The kernel tells that of each socket and group alone. */
static bool is_member(int fd, int level, unsigned interface, const void *address, size_t len)
{
	struct group_filter filter = { .gf_interface = interface };
	socklen_t size = sizeof(filter);

	memcpy(&filter.gf_group, address, len);
	return getsockopt(fd, level, MCAST_MSFILTER, &filter, &size) == 0 &&
	       filter.gf_fmode == MCAST_EXCLUDE && !filter.gf_numsrc;
}

static bool is_membership(const struct socket_option *s)
{
	return (s->level == IPPROTO_IP && s->name == IP_ADD_MEMBERSHIP) ||
	       (s->level == IPPROTO_IPV6 && s->name == IPV6_JOIN_GROUP);
}

static bool has_membership(const struct socket_option *s, int fd)
{
	if (s->level == IPPROTO_IP && s->len_bytes == sizeof(struct ip_mreqn)) {
		struct ip_mreqn m;

		memcpy(&m, s->value, sizeof(m));
		const struct sockaddr_in group = { .sin_family = AF_INET,
						   .sin_addr = m.imr_multiaddr };
		return is_member(fd, IPPROTO_IP, (unsigned)m.imr_ifindex, &group, sizeof(group));
	}
	if (s->level == IPPROTO_IPV6 && s->len_bytes == sizeof(struct ipv6_mreq)) {
		struct ipv6_mreq m;

		memcpy(&m, s->value, sizeof(m));
		const struct sockaddr_in6 group = { .sin6_family = AF_INET6,
						    .sin6_addr = m.ipv6mr_multiaddr };
		return is_member(fd, IPPROTO_IPV6, m.ipv6mr_interface, &group, sizeof(group));
	}
	return false;
}

/* Adds @of with @value if that is so. */
static int add_if_member(struct socket_options *o, const struct socket_option *of, int fd,
			 const void *value, size_t len)
{
	struct socket_option option = *of;

	memcpy(option.value, value, len);
	option.len_bytes = len;
	return has_membership(&option, fd) ? array_add(o->items, o->n, option) : 0;
}

/* The groups that an interface of the machine is in, for any socket, as /proc/PID/net/igmp lists them. */
static int read_groups(struct socket_options *o, pid_t pid, int number, int fd, const char *igmp)
{
	const struct socket_option of = {
		.pid = pid, .fd = number, .level = IPPROTO_IP, .name = IP_ADD_MEMBERSHIP
	};
	int interface = 0, r = 0;

	for (const char *line = igmp; line && r == 0; line = strchr(line, '\n')) {
		struct ip_mreqn m = { 0 };

		line += *line == '\n';
		if (*line >= '0' && *line <= '9')
			interface = atoi(line);
		else if (sscanf(line, "\t\t\t\t%8" SCNx32 " ", &m.imr_multiaddr.s_addr) == 1) {
			m.imr_ifindex = interface;
			r = add_if_member(o, &of, fd, &m, sizeof(m));
		}
	}
	return r;
}

static bool parse_group6(struct ipv6_mreq *ret, const char *line)
{
	char hex[33];

	if (sscanf(line, "%u %*s %32s", &ret->ipv6mr_interface, hex) != 2 || strlen(hex) != 32)
		return false;
	for (int i = 0; i < 16; i++) {
		int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);

		if (high < 0 || low < 0)
			return false;
		ret->ipv6mr_multiaddr.s6_addr[i] = (uint8_t)(high << 4 | low);
	}
	return true;
}

static int read_groups6(struct socket_options *o, pid_t pid, int number, int fd, const char *igmp6)
{
	const struct socket_option of = {
		.pid = pid, .fd = number, .level = IPPROTO_IPV6, .name = IPV6_JOIN_GROUP
	};
	int r = 0;

	for (const char *line = igmp6; line && r == 0; line = strchr(line, '\n')) {
		struct ipv6_mreq m;

		line += *line == '\n';
		if (parse_group6(&m, line))
			r = add_if_member(o, &of, fd, &m, sizeof(m));
	}
	return r;
}

static int read_memberships(struct socket_options *o, const struct proc_info *info, int number,
			    int fd, int domain)
{
	auto_free char *igmp = NULL, *igmp6 = NULL;
	int r = 0;

	if (proc_file_read(info->id.pid, "net/igmp", GROUPS_BYTES_MAX, &igmp, NULL) >= 0)
		r = read_groups(o, info->inner_pid, number, fd, igmp);
	if (r == 0 && domain == AF_INET6 &&
	    proc_file_read(info->id.pid, "net/igmp6", GROUPS_BYTES_MAX, &igmp6, NULL) >= 0)
		r = read_groups6(o, info->inner_pid, number, fd, igmp6);
	return r;
}

static int read_socket(void *arg, const struct proc_info *info, int number, int fd)
{
	struct socket_options *o = arg;
	int domain = 0, type = 0, r = 0;
	socklen_t len = sizeof(int);

	if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) < 0 ||
	    getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) < 0)
		return 0;
	for (size_t i = 0; i < N_KNOWN && r == 0; i++) {
		struct socket_option option;

		if (!applies(&known[i], domain, type) || !get(&option, fd, &known[i]) ||
		    (known[i].only_if_set && !is_set(&option)))
			continue;
		option.pid = info->inner_pid;
		option.fd = number;
		r = array_add(o->items, o->n, option);
	}
	if (r == 0 && type != SOCK_STREAM && (domain == AF_INET || domain == AF_INET6))
		r = read_memberships(o, info, number, fd, domain);
	return r;
}

struct seen {
	uint64_t *inodes; /* owned */
	size_t n;
};

static int is_new(struct seen *seen, uint64_t inode)
{
	for (size_t i = 0; i < seen->n; i++)
		if (seen->inodes[i] == inode)
			return 0;
	if (array_add(seen->inodes, seen->n, inode) < 0)
		return -ENOMEM;
	return 1;
}

static int each_of_process(struct seen *seen, const struct proc_info *info, sockets_fn fn,
			   void *arg)
{
	auto_close int process = (int)syscall(SYS_pidfd_open, info->id.pid, 0);
	auto_closedir DIR *dir = proc_dir_open(info->id.pid, "fd");
	int r = 0;

	for (struct dirent *e; dir && process >= 0 && r >= 0 && (e = readdir(dir));) {
		char target[64];
		uint64_t inode;
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		if (sscanf(target, "socket:[%" SCNu64 "]", &inode) != 1 ||
		    (r = is_new(seen, inode)) <= 0)
			continue;
		auto_close int fd = (int)syscall(SYS_pidfd_getfd, process, atoi(e->d_name), 0);
		r = fd < 0 ? 0 : fn(arg, info, atoi(e->d_name), fd);
	}
	return r < 0 ? r : 0;
}

int sockets_each(const struct proc_tree *tree, sockets_fn fn, void *arg)
{
	struct seen seen = { 0 };
	int r = 0;

	for (size_t i = 0; i < tree->n && r == 0; i++)
		if (tree->items[i].state != 'Z')
			r = each_of_process(&seen, &tree->items[i], fn, arg);
	free(seen.inodes);
	return r;
}

int socket_options_read(struct socket_options *ret, const struct proc_tree *tree)
{
	auto_(socket_options_fini) struct socket_options o = SOCKET_OPTIONS_EMPTY;
	int r = sockets_each(tree, read_socket, &o);

	if (r == 0)
		*ret = take_struct(o, SOCKET_OPTIONS_EMPTY);
	return r;
}

/* ---- as text ---- */

char *socket_options_encode(const struct socket_options *o, size_t *ret_len_bytes)
{
	char *text = NULL;
	FILE *f = open_memstream(&text, ret_len_bytes);

	if (!f)
		return NULL;
	fputs(HEADING, f);
	for (size_t i = 0; i < o->n; i++) {
		const struct socket_option *s = &o->items[i];

		fprintf(f, "%d %d %d %d ", s->pid, s->fd, s->level, s->name);
		for (size_t k = 0; k < s->len_bytes; k++)
			fprintf(f, "%02x", s->value[k]);
		fputs(s->len_bytes ? "\n" : "-\n", f);
	}
	if (fclose(f) == 0)
		return text;
	free(text);
	return NULL;
}

static bool decode_value(struct socket_option *s, const char *hex)
{
	if (!strcmp(hex, "-"))
		return true;
	for (; hex[0]; hex += 2) {
		const int high = hex_value(hex[0]), low = high < 0 ? -1 : hex_value(hex[1]);

		if (low < 0 || s->len_bytes == sizeof(s->value))
			return false;
		s->value[s->len_bytes++] = (uint8_t)(high << 4 | low);
	}
	return s->len_bytes > 0;
}

static bool decode_line(struct socket_option *ret, const char *line)
{
	char hex[2 * SOCKET_OPTION_BYTES + 2];
	int end = -1;

	*ret = (struct socket_option){ 0 };
	return sscanf(line, "%d %d %d %d %65s%n", &ret->pid, &ret->fd, &ret->level, &ret->name, hex,
		      &end) == 5 &&
	       end >= 0 && !line[end] && ret->pid > 0 && ret->fd >= 0 && decode_value(ret, hex);
}

int socket_options_decode(struct socket_options *ret, const char *text, size_t len_bytes)
{
	auto_(socket_options_fini) struct socket_options o = SOCKET_OPTIONS_EMPTY;
	const char *end = text + len_bytes;

	if (len_bytes < strlen(HEADING) || memcmp(text, HEADING, strlen(HEADING)) != 0)
		return -EBADMSG;
	for (text += strlen(HEADING); text < end;) {
		const char *newline = memchr(text, '\n', (size_t)(end - text));
		struct socket_option option;
		char line[160];

		if (!newline || (size_t)(newline - text) >= sizeof(line) ||
		    o.n == SOCKET_OPTIONS_MAX)
			return -EBADMSG;
		memcpy(line, text, (size_t)(newline - text));
		line[newline - text] = '\0';
		if (!decode_line(&option, line))
			return -EBADMSG;
		int r = array_add(o.items, o.n, option);
		if (r < 0)
			return r;
		text = newline + 1;
	}
	*ret = take_struct(o, SOCKET_OPTIONS_EMPTY);
	return 0;
}

/* ---- setting ---- */

static const struct known_option *find_known(const struct socket_option *s)
{
	for (size_t i = 0; i < N_KNOWN; i++)
		if (known[i].level == s->level && known[i].name == s->name)
			return &known[i];
	return NULL;
}

static bool has(const struct socket_option *s, int fd, const struct known_option *k)
{
	struct socket_option now;

	if (is_membership(s))
		return has_membership(s, fd);
	return get(&now, fd, k) && now.len_bytes == s->len_bytes &&
	       !memcmp(now.value, s->value, s->len_bytes);
}

/* No record makes a file. */
static bool is_abstract(const struct socket_option *s)
{
	const size_t at = offsetof(struct sockaddr_un, sun_path);

	return s->len_bytes > at && !s->value[at];
}

struct setting {
	uid_t uid;
	gid_t gid;
	socket_options_note_fn note;
	void *arg;
};

/* The descriptor is had with our rights, the option set with the user's. */
static int set_option(const struct setting *by, const struct socket_option *s, int fd,
		      const struct proc_info *info)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	const struct known_option *k = find_known(s);
	char text[160];

	if (!k || has(s, fd, k) || (s->name == OWN_NAME && !is_abstract(s)))
		return 0;
	int r = user_files_enter(&user, by->uid, by->gid, NULL);
	if (r < 0)
		return r;
	r = s->name == OWN_NAME
		    ? bind(fd, (const void *)s->value, (socklen_t)s->len_bytes)
		    : setsockopt(fd, s->level, s->name, s->value, (socklen_t)s->len_bytes);
	if (r == 0 && has(s, fd, k))
		return 0;
	snprintf(text, sizeof(text), "process %d (%s): socket %d is without %s%s: %s", info->id.pid,
		 info->comm, s->fd, s->name == OWN_NAME ? "" : "its option ", k->text,
		 errno ? strerror(errno) : "the kernel keeps another value");
	by->note(by->arg, text);
	return 0;
}

/* Those from @first on of one descriptor. Returns how many, or -errno. */
static ssize_t set_all(const struct setting *by, const struct socket_options *o, size_t first,
		       const struct proc_info *info, int process)
{
	const struct socket_option *s = &o->items[first];
	auto_close int fd = (int)syscall(SYS_pidfd_getfd, process, s->fd, 0);
	size_t n = 0;

	while (first + n < o->n && s[n].pid == s->pid && s[n].fd == s->fd) {
		int r = fd < 0 ? 0 : set_option(by, &s[n], fd, info);

		if (r < 0)
			return r;
		n++;
	}
	return (ssize_t)n;
}

int socket_options_apply(const struct socket_options *o, const struct proc_tree *tree, uid_t uid,
			 gid_t gid, socket_options_note_fn note, void *arg)
{
	const struct setting by = { uid, gid, note, arg };

	for (size_t i = 0; i < tree->n; i++) {
		const struct proc_info *info = &tree->items[i];
		auto_close int process = (int)syscall(SYS_pidfd_open, info->id.pid, 0);
		ssize_t n;

		for (size_t k = 0; k < o->n && process >= 0; k += (size_t)n) {
			n = o->items[k].pid == info->inner_pid ? set_all(&by, o, k, info, process)
							       : 1;
			if (n < 0)
				return (int)n;
		}
	}
	return 0;
}
