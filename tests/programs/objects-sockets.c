// SPDX-License-Identifier: MIT
/* Kinds of sockets. */
#include "objects.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_alg.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/vm_sockets.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

enum { SMALL = 1000, PAIRS = 16 };

/* Options that any socket may have, each with even odds. */
static void some_options(int fd)
{
	enum { SOL = SOL_SOCKET, IP = IPPROTO_IP, IP6 = IPPROTO_IPV6, TCP = IPPROTO_TCP };
	/* By their numbers where headers may be older. */
	static const struct {
		int level, option, value;
	} options[] = {
		{ SOL, SO_KEEPALIVE, 1 },
		{ SOL, SO_RCVLOWAT, 3 },
		{ SOL, SO_PRIORITY, 5 },
		{ SOL, SO_SNDBUF, 40000 },
		{ SOL, SO_RCVBUF, 50000 },
		{ SOL, SO_DONTROUTE, 1 },
		{ SOL, SO_REUSEADDR, 1 },
		{ SOL, SO_MARK, 7 },
		{ SOL, SO_BROADCAST, 1 },
		{ SOL, SO_OOBINLINE, 1 },
		{ SOL, SO_TIMESTAMP, 1 },
		{ SOL, SO_BUSY_POLL, 10 },
		{ SOL, SO_PASSCRED, 1 },
		{ SOL, SO_NO_CHECK, 1 },
		{ SOL, 37, 16 },
		{ SOL, 43, 1 },
		{ SOL, 45, 1 },
		{ SOL, 74, 0 },
		{ SOL, 75, 1 },
		{ SOL, 76, 1 },
		{ SOL, 82, 1 },
		{ IP, 7, 1 },
		{ IP, 20, 1 },
		{ IP, 51, 20000 | 60000 << 16 },
		{ IP6, 29, 0 },
		{ IP6, 31, 1 },
		{ IP6, 33, 1 },
		{ IP6, 56, 1 },
		{ IP6, 60, 1 },
		{ IP6, 62, 1 },
		{ IP6, 74, 1 },
		{ IP6, 77, 1 },
		{ TCP, 23, 16 },
		{ TCP, 27, 1 },
		{ TCP, 34, 1 },
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (chance(2))
			setsockopt(fd, options[i].level, options[i].option, &options[i].value,
				   sizeof(int));
	if (chance(2)) {
		struct linger linger = { 1, (int)chance(30) };

		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	}
	if (chance(2)) {
		struct timeval timeout = { .tv_sec = 3 + chance(10) };

		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
		setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout));
	}
}

/* ---- unix ---- */

static int pairs[PAIRS][2];

static bool make_pair(void)
{
	int *pair = pairs[kind->detail], type = kind->detail;

	if (socketpair(AF_UNIX, type, 0, pair) < 0)
		return false;
	some_options(pair[0]);
	return look_at_fd(pair[0], "one") && look_at_fd(pair[1], "other");
}

static const char *use_pair(void)
{
	int *pair = pairs[kind->detail];

	return passes(pair[0], pair[1]) && passes(pair[1], pair[0]) ? NULL : "does not pass";
}

static bool make_pair_data(void)
{
	int pair[2];
	char bytes[SMALL];

	pattern(bytes, sizeof(bytes));
	if (socketpair(AF_UNIX, kind->detail, 0, pair) < 0 || send(pair[0], bytes, 400, 0) < 0 ||
	    send(pair[0], bytes, 300, 0) < 0)
		return false;
	return send(pair[1], bytes, 200, 0) > 0 && look_at_fd(pair[0], "one") &&
	       look_at_fd(pair[1], "other");
}

static bool make_pair_shut(void)
{
	int pair[2];

	return socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0 && send(pair[0], "left", 4, 0) == 4 &&
	       shutdown(pair[0], kind->detail) == 0 && look_at_fd(pair[0], "one") &&
	       look_at_fd(pair[1], "other");
}

static bool make_pair_closed(void)
{
	int pair[2];

	if (socketpair(AF_UNIX, kind->detail, 0, pair) < 0 || send(pair[0], "left", 4, 0) != 4)
		return false;
	close(pair[0]);
	return look_at_fd(pair[1], "other");
}

/* A descriptor that is on its way. */
static int carrier[2];

static bool send_fd(int socket, int fd)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec part = { "f", 1 };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(fd));
	return sendmsg(socket, &message, 0) == 1;
}

static int receive_fd(int socket)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	char byte;
	struct iovec part = { &byte, 1 };
	struct msghdr message = { .msg_iov = &part,
				  .msg_iovlen = 1,
				  .msg_control = &control,
				  .msg_controllen = sizeof(control) };
	int fd = -1;

	if (recvmsg(socket, &message, MSG_DONTWAIT) == 1 && CMSG_FIRSTHDR(&message))
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static bool make_fd_in_flight(void)
{
	int fd = open(new_path(""), O_RDWR | O_CREAT, 0600);

	if (fd < 0 || write(fd, "passed", 6) != 6 ||
	    socketpair(AF_UNIX, SOCK_STREAM, 0, carrier) < 0 || !send_fd(carrier[0], fd))
		return false;
	close(fd);
	return look_at_fd(carrier[0], "one") && look_at_fd(carrier[1], "other");
}

static const char *use_fd_in_flight(void)
{
	char text[8] = "";
	int fd = receive_fd(carrier[1]);

	if (fd < 0)
		return "no descriptor came";
	const char *wrong =
		pread(fd, text, 6, 0) == 6 && !strcmp(text, "passed") ? NULL : "another file came";
	if (!send_fd(carrier[0], fd))
		wrong = "cannot be sent";
	close(fd);
	return wrong;
}

static struct sockaddr_un unix_address(const char *path, bool abstract)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	snprintf(a.sun_path + abstract, sizeof(a.sun_path) - abstract, "%s", path);
	return a;
}

static int unix_listener[4];
static struct sockaddr_un unix_listens_at[4];

/* 0: by path, 1: abstract, 2: by path that is gone. */
static bool make_unix_listener(void)
{
	char name[80];

	snprintf(name, sizeof(name), "/tmp/objects-%d-%u", (int)getpid(), chance(1 << 30));
	struct sockaddr_un *a = &unix_listens_at[kind->detail];
	*a = unix_address(name, kind->detail == 1);
	int fd = unix_listener[kind->detail] = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(fd, (struct sockaddr *)a, sizeof(*a)) < 0 || listen(fd, (int)(1 + chance(20))) < 0)
		return false;
	if (kind->detail == 2)
		unlink(name);
	return look_at_fd(fd, "fd") && (kind->detail ? true : look_at_path(strdup(name), "path"));
}

static const char *use_unix_listener(void)
{
	struct sockaddr_un *a = &unix_listens_at[kind->detail];
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	const char *wrong = NULL;

	if (connect(fd, (struct sockaddr *)a, sizeof(*a)) < 0) {
		wrong = "does not take a connection";
	} else {
		int got = accept(unix_listener[kind->detail], NULL, NULL);

		if (!passes(fd, got))
			wrong = "does not pass";
		close(got);
	}
	close(fd);
	return wrong;
}

static bool make_unix_unaccepted(void)
{
	char name[80];

	snprintf(name, sizeof(name), "/tmp/objects-%d-%u", (int)getpid(), chance(1 << 30));
	struct sockaddr_un a = unix_address(name, false);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0), fd = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&a, sizeof(a)) < 0 || listen(listener, 5) < 0 ||
	    connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0)
		return false;
	return (kind->detail ? send(fd, "early", 5, 0) == 5 : true) &&
	       look_at_fd(listener, "listener") && look_at_fd(fd, "fd");
}

static int bound_dgram, sender_dgram;

static bool make_unix_dgram(void)
{
	char name[80];

	snprintf(name, sizeof(name), "/tmp/objects-%d-%u", (int)getpid(), chance(1 << 30));
	struct sockaddr_un a = unix_address(name, kind->detail);
	bound_dgram = socket(AF_UNIX, SOCK_DGRAM, 0);
	sender_dgram = socket(AF_UNIX, SOCK_DGRAM, 0);
	return bind(bound_dgram, (struct sockaddr *)&a, sizeof(a)) == 0 &&
	       connect(sender_dgram, (struct sockaddr *)&a, sizeof(a)) == 0 &&
	       look_at_fd(bound_dgram, "bound") && look_at_fd(sender_dgram, "connected");
}

static const char *use_unix_dgram(void)
{
	return passes(sender_dgram, bound_dgram) ? NULL : "does not pass";
}

static bool make_unbound(void)
{
	int fd = socket(kind->detail >> 8, kind->detail & 0xff, 0);

	if (fd >= 0)
		some_options(fd);
	return look_at_fd(fd, "fd");
}

/* ---- internet ---- */

static struct sockaddr_storage any_port(int family, socklen_t *len)
{
	struct sockaddr_storage a = { .ss_family = (sa_family_t)family };

	if (family == AF_INET)
		((struct sockaddr_in *)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	else
		((struct sockaddr_in6 *)&a)->sin6_addr = in6addr_loopback;
	*len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	return a;
}

static int listening_at(int family, int protocol, struct sockaddr_storage *at, socklen_t *len)
{
	int fd = socket(family, SOCK_STREAM, protocol);

	*at = any_port(family, len);
	if (fd < 0 || bind(fd, (struct sockaddr *)at, *len) < 0 ||
	    listen(fd, (int)(1 + chance(30))) < 0)
		return -1;
	return getsockname(fd, (struct sockaddr *)at, len) < 0 ? -1 : fd;
}

static bool connected(int family, int pair[2])
{
	struct sockaddr_storage at;
	socklen_t len;
	int listener = listening_at(family, 0, &at, &len);

	pair[0] = socket(family, SOCK_STREAM, 0);
	if (listener < 0 || connect(pair[0], (struct sockaddr *)&at, len) < 0)
		return false;
	pair[1] = accept(listener, NULL, NULL);
	close(listener);
	return pair[1] >= 0;
}

static int tcp_listener[12];
static struct sockaddr_storage tcp_listens_at[12];
static socklen_t tcp_listens_len[12];

static bool make_tcp_listener(void)
{
	int fd = tcp_listener[kind->detail] = listening_at(
		kind->detail, 0, &tcp_listens_at[kind->detail], &tcp_listens_len[kind->detail]);

	some_options(fd);
	return look_at_fd(fd, "fd");
}

static const char *use_tcp_listener(void)
{
	int fd = socket(kind->detail, SOCK_STREAM, 0);
	const char *wrong = NULL;

	if (connect(fd, (struct sockaddr *)&tcp_listens_at[kind->detail],
		    tcp_listens_len[kind->detail]) < 0) {
		wrong = "does not take a connection";
	} else {
		int got = accept(tcp_listener[kind->detail], NULL, NULL);
		/* Both are gone at once, with nothing left behind. */
		struct linger linger = { 1, 0 };

		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
		close(fd);
		close(got);
		return NULL;
	}
	close(fd);
	return wrong;
}

static int tcp_pairs[12][2];

static bool make_tcp_pair(void)
{
	static const int options[] = { TCP_NODELAY, TCP_CORK, TCP_QUICKACK, TCP_DEFER_ACCEPT };
	int *pair = tcp_pairs[kind->detail], one = 1;

	if (!connected(kind->detail, pair))
		return false;
	for (size_t i = 0; i < 2; i++)
		if (chance(2))
			setsockopt(pair[0], IPPROTO_TCP, options[0], &one, sizeof(one));
	some_options(pair[0]);
	if (chance(2)) {
		int values[] = { 60, 7, 3, 20000 },
		    names[] = { TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT };

		for (int i = 0; i < 4; i++)
			setsockopt(pair[0], IPPROTO_TCP, names[i], &values[i], sizeof(int));
	}
	return look_at_fd(pair[0], "client") && look_at_fd(pair[1], "server");
}

static const char *use_tcp_pair(void)
{
	int *pair = tcp_pairs[kind->detail], low = 1, was[2];
	socklen_t len = sizeof(int);

	for (int i = 0; i < 2; i++) {
		getsockopt(pair[i], SOL_SOCKET, SO_RCVLOWAT, &was[i], &len);
		setsockopt(pair[i], SOL_SOCKET, SO_RCVLOWAT, &low, len);
	}
	bool both = passes(pair[0], pair[1]) && passes(pair[1], pair[0]);
	for (int i = 0; i < 2; i++)
		setsockopt(pair[i], SOL_SOCKET, SO_RCVLOWAT, &was[i], len);
	return both ? NULL : "does not pass";
}

static bool make_tcp_data(void)
{
	int pair[2];
	char bytes[SMALL];

	pattern(bytes, sizeof(bytes));
	return connected(kind->detail, pair) && send(pair[0], bytes, 700, 0) == 700 &&
	       send(pair[1], bytes, 300, 0) == 300 && is_readable(pair[0], SMALL) &&
	       is_readable(pair[1], SMALL) && look_at_fd(pair[0], "client") &&
	       look_at_fd(pair[1], "server");
}

static bool make_tcp_urgent(void)
{
	int pair[2];

	return connected(AF_INET, pair) && send(pair[0], "u", 1, MSG_OOB) == 1 &&
	       look_at_fd(pair[0], "client") && look_at_fd(pair[1], "server");
}

/* The end of what one side sends is known to be received a moment later (delayed acknowledgements). */
static bool end_is_acknowledged(int fd)
{
	struct tcp_info info = { .tcpi_state = TCP_FIN_WAIT1 };

	for (int i = 0; i < 2000 && info.tcpi_state == TCP_FIN_WAIT1; i++) {
		socklen_t len = sizeof(info);

		if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
			return false;
		usleep(1000);
	}
	return info.tcpi_state == TCP_FIN_WAIT2;
}

static bool make_tcp_half_closed(void)
{
	int pair[2];

	return connected(AF_INET, pair) && send(pair[0], "last", 4, 0) == 4 &&
	       shutdown(pair[0], kind->detail) == 0 && is_readable(pair[1], SMALL) &&
	       end_is_acknowledged(pair[0]) && look_at_fd(pair[0], "client") &&
	       look_at_fd(pair[1], "server");
}

static bool make_tcp_closed_peer(void)
{
	int pair[2];

	if (!connected(AF_INET, pair) || send(pair[0], "last", 4, 0) != 4)
		return false;
	close(pair[0]);
	return is_readable(pair[1], SMALL) && look_at_fd(pair[1], "server");
}

static bool make_tcp_unaccepted(void)
{
	struct sockaddr_storage at;
	socklen_t len;
	int listener = listening_at(AF_INET, 0, &at, &len), fd = socket(AF_INET, SOCK_STREAM, 0);

	if (listener < 0 || connect(fd, (struct sockaddr *)&at, len) < 0 ||
	    (kind->detail && send(fd, "early", 5, 0) != 5))
		return false;
	return is_readable(listener, SMALL) && look_at_fd(listener, "listener") &&
	       look_at_fd(fd, "client");
}

static bool make_mptcp(void)
{
	struct sockaddr_storage at;
	socklen_t len;

	return look_at_fd(listening_at(AF_INET, IPPROTO_MPTCP, &at, &len), "fd");
}

static bool make_tcp_bound(void)
{
	socklen_t len;
	struct sockaddr_storage at = any_port(AF_INET, &len);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	return bind(fd, (struct sockaddr *)&at, len) == 0 && look_at_fd(fd, "fd");
}

static bool make_reuseport(void)
{
	struct sockaddr_storage at;
	socklen_t len;
	int one = 1, first = socket(AF_INET, SOCK_STREAM, 0),
	    second = socket(AF_INET, SOCK_STREAM, 0);

	at = any_port(AF_INET, &len);
	setsockopt(first, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	setsockopt(second, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one));
	return bind(first, (struct sockaddr *)&at, len) == 0 && listen(first, 5) == 0 &&
	       getsockname(first, (struct sockaddr *)&at, &len) == 0 &&
	       bind(second, (struct sockaddr *)&at, len) == 0 && listen(second, 5) == 0 &&
	       look_at_fd(first, "first") && look_at_fd(second, "second");
}

static int udp_fd[12];
static struct sockaddr_storage udp_at[12];
static socklen_t udp_len[12];

static bool make_udp(void)
{
	int f = kind->detail, fd = udp_fd[f] = socket(f, SOCK_DGRAM, 0);

	udp_at[f] = any_port(f, &udp_len[f]);
	some_options(fd);
	return bind(fd, (struct sockaddr *)&udp_at[f], udp_len[f]) == 0 &&
	       getsockname(fd, (struct sockaddr *)&udp_at[f], &udp_len[f]) == 0 &&
	       look_at_fd(fd, "fd");
}

static const char *use_udp(void)
{
	int f = kind->detail, fd = socket(f, SOCK_DGRAM, 0);
	char byte;
	bool came = sendto(fd, "x", 1, 0, (struct sockaddr *)&udp_at[f], udp_len[f]) == 1 &&
		    is_readable(udp_fd[f], SMALL) && recv(udp_fd[f], &byte, 1, MSG_DONTWAIT) == 1;

	close(fd);
	return came ? NULL : "nothing comes";
}

static bool make_udp_connected(void)
{
	socklen_t len;
	struct sockaddr_storage at = any_port(kind->detail, &len);
	int bound = socket(kind->detail, SOCK_DGRAM, 0), fd = socket(kind->detail, SOCK_DGRAM, 0);

	return bind(bound, (struct sockaddr *)&at, len) == 0 &&
	       getsockname(bound, (struct sockaddr *)&at, &len) == 0 &&
	       connect(fd, (struct sockaddr *)&at, len) == 0 && look_at_fd(bound, "bound") &&
	       look_at_fd(fd, "connected");
}

static bool make_udp_data(void)
{
	socklen_t len;
	struct sockaddr_storage at = any_port(AF_INET, &len);
	int bound = socket(AF_INET, SOCK_DGRAM, 0);

	return bind(bound, (struct sockaddr *)&at, len) == 0 &&
	       getsockname(bound, (struct sockaddr *)&at, &len) == 0 &&
	       sendto(bound, "waiting", 7, 0, (struct sockaddr *)&at, len) == 7 &&
	       is_readable(bound, SMALL) && look_at_fd(bound, "fd");
}

static int member_fd;

static void look_at_membership(void *arg)
{
	struct group_filter filter = { .gf_interface = 1 };
	struct sockaddr_in group = { .sin_family = AF_INET };
	socklen_t len = sizeof(filter);

	(void)arg;
	inet_pton(AF_INET, "239.1.2.3", &group.sin_addr);
	memcpy(&filter.gf_group, &group, sizeof(group));
	int r = getsockopt(member_fd, IPPROTO_IP, MCAST_MSFILTER, &filter, &len);
	fact("member", "%d %d", r, r == 0 ? (int)filter.gf_fmode : errno);
}

static bool make_multicast(void)
{
	struct ip_mreq group = { .imr_interface.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_DGRAM, 0), ttl = 3;
	socklen_t len;
	struct sockaddr_storage at = any_port(AF_INET, &len);

	inet_pton(AF_INET, "239.1.2.3", &group.imr_multiaddr);
	((struct sockaddr_in *)&at)->sin_addr.s_addr = htonl(INADDR_ANY);
	setsockopt(fd, IPPROTO_IP, IP_MULTICAST_TTL, &ttl, sizeof(ttl));
	return bind(fd, (struct sockaddr *)&at, len) == 0 &&
	       setsockopt(fd, IPPROTO_IP, IP_ADD_MEMBERSHIP, &group, sizeof(group)) == 0 &&
	       (member_fd = fd) >= 0 && look_by(look_at_membership, NULL) && look_at_fd(fd, "fd");
}

static bool make_ip_options(void)
{
	static const struct {
		int level, option, value;
	} options[] = {
		{ IPPROTO_IP, IP_TOS, 16 },
		{ IPPROTO_IP, IP_TTL, 33 },
		{ IPPROTO_IP, IP_PKTINFO, 1 },
		{ IPPROTO_IP, IP_RECVTTL, 1 },
		{ IPPROTO_IP, IP_FREEBIND, 1 },
		{ IPPROTO_IP, IP_MTU_DISCOVER, 2 },
		{ IPPROTO_IP, IP_RECVERR, 1 },
		{ IPPROTO_IPV6, IPV6_V6ONLY, 1 },
		{ IPPROTO_IPV6, IPV6_UNICAST_HOPS, 9 },
		{ IPPROTO_IPV6, IPV6_TCLASS, 8 },
		{ IPPROTO_IPV6, IPV6_RECVPKTINFO, 1 },
	};
	int fd = socket(kind->detail, SOCK_DGRAM, 0);

	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++)
		if (chance(2))
			setsockopt(fd, options[i].level, options[i].option, &options[i].value,
				   sizeof(int));
	socklen_t len;
	struct sockaddr_storage at = any_port(kind->detail, &len);
	return bind(fd, (struct sockaddr *)&at, len) == 0 && look_at_fd(fd, "fd");
}

/* ---- others ---- */

static bool make_raw(void)
{
	return look_at_fd(socket(AF_INET, SOCK_RAW, IPPROTO_ICMP), "fd");
}

static bool make_packet(void)
{
	return look_at_fd(socket(AF_PACKET, SOCK_RAW, htons(3)), "fd");
}

static bool make_netlink(void)
{
	struct sockaddr_nl a = { .nl_family = AF_NETLINK, .nl_groups = kind->detail ? 1 : 0 };
	int fd = socket(AF_NETLINK, SOCK_RAW, NETLINK_ROUTE);

	return bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && look_at_fd(fd, "fd");
}

static bool make_vsock(void)
{
	struct sockaddr_vm a = { .svm_family = AF_VSOCK,
				 .svm_port = VMADDR_PORT_ANY,
				 .svm_cid = VMADDR_CID_ANY };
	int fd = socket(AF_VSOCK, SOCK_STREAM, 0);

	return fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && listen(fd, 1) == 0 &&
	       look_at_fd(fd, "fd");
}

static bool make_alg(void)
{
	struct sockaddr_alg a = { .salg_family = AF_ALG,
				  .salg_type = "hash",
				  .salg_name = "sha256" };
	int fd = socket(AF_ALG, SOCK_SEQPACKET, 0);

	return fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof(a)) == 0 && look_at_fd(fd, "fd");
}

const struct kind kinds_of_sockets[] = {
	{ "unix-stream", make_pair, use_pair, SOCK_STREAM },
	{ "unix-dgram", make_pair, use_pair, SOCK_DGRAM },
	{ "unix-seqpacket", make_pair, use_pair, SOCK_SEQPACKET },
	{ "unix-stream-data", make_pair_data, .detail = SOCK_STREAM },
	{ "unix-dgram-data", make_pair_data, .detail = SOCK_DGRAM },
	{ "unix-seqpacket-data", make_pair_data, .detail = SOCK_SEQPACKET },
	{ "unix-shut-read", make_pair_shut, .detail = SHUT_RD },
	{ "unix-shut-write", make_pair_shut, .detail = SHUT_WR },
	{ "unix-shut", make_pair_shut, .detail = SHUT_RDWR },
	{ "unix-stream-closed", make_pair_closed, .detail = SOCK_STREAM },
	{ "unix-dgram-closed", make_pair_closed, .detail = SOCK_DGRAM },
	{ "unix-fd-in-flight", make_fd_in_flight, use_fd_in_flight },
	{ "unix-listener", make_unix_listener, use_unix_listener, 0 },
	{ "unix-listener-abstract", make_unix_listener, use_unix_listener, 1 },
	{ "unix-listener-gone", make_unix_listener, .detail = 2 },
	{ "unix-unaccepted", make_unix_unaccepted },
	{ "unix-unaccepted-data", make_unix_unaccepted, .detail = 1 },
	{ "unix-dgram-bound", make_unix_dgram, use_unix_dgram, 0 },
	{ "unix-dgram-abstract", make_unix_dgram, use_unix_dgram, 1 },
	{ "unix-unbound", make_unbound, .detail = AF_UNIX << 8 | SOCK_STREAM },
	{ "unix-unbound-dgram", make_unbound, .detail = AF_UNIX << 8 | SOCK_DGRAM },
	{ "tcp-unbound", make_unbound, .detail = AF_INET << 8 | SOCK_STREAM },
	{ "tcp6-unbound", make_unbound, .detail = AF_INET6 << 8 | SOCK_STREAM },
	{ "udp-unbound", make_unbound, .detail = AF_INET << 8 | SOCK_DGRAM },
	{ "tcp-listener", make_tcp_listener, use_tcp_listener, AF_INET },
	{ "tcp6-listener", make_tcp_listener, use_tcp_listener, AF_INET6 },
	{ "tcp-bound", make_tcp_bound },
	{ "tcp-reuseport", make_reuseport },
	{ "tcp-pair", make_tcp_pair, use_tcp_pair, AF_INET },
	{ "tcp6-pair", make_tcp_pair, use_tcp_pair, AF_INET6 },
	{ "tcp-data", make_tcp_data, .detail = AF_INET },
	{ "tcp6-data", make_tcp_data, .detail = AF_INET6 },
	{ "tcp-urgent", make_tcp_urgent },
	{ "tcp-shut-write", make_tcp_half_closed, .detail = SHUT_WR },
	{ "tcp-shut", make_tcp_half_closed, .detail = SHUT_RDWR },
	{ "tcp-closed-peer", make_tcp_closed_peer },
	{ "tcp-unaccepted", make_tcp_unaccepted },
	{ "tcp-unaccepted-data", make_tcp_unaccepted, .detail = 1 },
	{ "mptcp-listener", make_mptcp },
	{ "udp", make_udp, use_udp, AF_INET },
	{ "udp6", make_udp, use_udp, AF_INET6 },
	{ "udp-connected", make_udp_connected, .detail = AF_INET },
	{ "udp6-connected", make_udp_connected, .detail = AF_INET6 },
	{ "udp-data", make_udp_data },
	{ "udp-multicast", make_multicast },
	{ "udp-options", make_ip_options, .detail = AF_INET },
	{ "udp6-options", make_ip_options, .detail = AF_INET6 },
	{ "raw-icmp", make_raw },
	{ "packet", make_packet },
	{ "netlink", make_netlink },
	{ "netlink-group", make_netlink, .detail = 1 },
	{ "vsock", make_vsock },
	{ "alg", make_alg },
	{ 0 },
};
