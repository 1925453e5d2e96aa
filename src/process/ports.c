// SPDX-License-Identifier: MIT
/*
 * Asks the kernel's socket diagnosis (sock_diag(7)) for all sockets and picks those of a port: so it is only asked where an
 * address was found to be taken.
 */
#include "process/ports.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"

enum {
	/* as the kernel numbers them */
	TCP_ESTABLISHED = 1,
	TCP_FIN_WAIT1 = 4,
	TCP_FIN_WAIT2 = 5,
	TCP_TIME_WAIT = 6,
	TCP_LAST_ACK = 9,
	TCP_CLOSING = 11,
	ANSWER_BYTES = 64 << 10,
	ANSWER_TIMEOUT_S = 5,
	V6_BYTES = 16,
};

static int open_diagnosis(void)
{
	const struct timeval timeout = { .tv_sec = ANSWER_TIMEOUT_S };
	auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);

	if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0)
		return -errno;
	return take_fd(&fd);
}

static int send_request(int fd, uint16_t type, uint16_t flags, const void *request, size_t bytes)
{
	struct nlmsghdr header = { .nlmsg_len = (uint32_t)(sizeof(header) + bytes),
				   .nlmsg_type = type,
				   .nlmsg_flags = NLM_F_REQUEST | flags };
	const struct iovec parts[] = { { &header, sizeof(header) }, { (void *)request, bytes } };

	return writev(fd, parts, 2) < 0 ? -errno : 0;
}

/* Reads one packet of an answer. Returns 1 if more is to come, 0 if that was all, or -errno. */
static int read_answer(int fd, char *buf, size_t least_bytes, port_answer_fn fn, void *arg)
{
	ssize_t n = recv(fd, buf, ANSWER_BYTES, 0);

	if (n < 0)
		return errno == EINTR ? 1 : -errno;

	unsigned left = (unsigned)n;
	for (const struct nlmsghdr *h = (void *)buf; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
		if (h->nlmsg_type == NLMSG_DONE)
			return 0;
		if (h->nlmsg_type == NLMSG_ERROR)
			return ((const struct nlmsgerr *)NLMSG_DATA(h))->error;
		if (h->nlmsg_len < NLMSG_LENGTH(least_bytes))
			return -EBADMSG;
		int r = fn(arg, h);
		if (r < 0)
			return r;
	}
	return n > 0;
}

int port_diagnose(const void *request, size_t bytes, size_t least_bytes, port_answer_fn fn,
		  void *arg)
{
	auto_close int fd = open_diagnosis();
	auto_free char *buf = malloc(ANSWER_BYTES);
	int r = fd < 0 ? fd : !buf ? -ENOMEM : 0;

	if (r == 0)
		r = send_request(fd, SOCK_DIAG_BY_FAMILY, NLM_F_DUMP, request, bytes);
	if (r == 0)
		while ((r = read_answer(fd, buf, least_bytes, fn, arg)) > 0)
			;
	return r;
}

static int each_socket_of(int family, bool is_tcp, port_answer_fn fn, void *arg)
{
	const struct inet_diag_req_v2 all = { .sdiag_family = (uint8_t)family,
					      .sdiag_protocol = is_tcp ? IPPROTO_TCP : IPPROTO_UDP,
					      .idiag_states = ~0u };

	return port_diagnose(&all, sizeof(all), sizeof(struct inet_diag_msg), fn, arg);
}

/* Of both families: an IPv6 socket may have the port of IPv4, too. A kernel without IPv6 has none of its sockets. */
static int each_socket(bool is_tcp, port_answer_fn fn, void *arg)
{
	int r = each_socket_of(AF_INET, is_tcp, fn, arg);
	int r6 = r == 0 ? each_socket_of(AF_INET6, is_tcp, fn, arg) : 0;

	return r6 == -ENOENT ? r : r6 ? r6 : r;
}

/* ---- addresses ---- */

static in_port_t port_of(const union port_address *a)
{
	return a->any.sa_family == AF_INET6 ? a->v6.sin6_port : a->v4.sin_port;
}

socklen_t port_address_parse(union port_address *ret, const char *text)
{
	char host[INET6_ADDRSTRLEN + 1];
	const char *colon = strrchr(text, ':');
	bool is_v6 = *text == '[';
	size_t len = colon ? (size_t)(colon - text) - (is_v6 ? 2 : 0) : 0;

	if (!len || len >= sizeof(host))
		return 0;
	snprintf(host, sizeof(host), "%.*s", (int)len, text + is_v6);
	in_port_t port = htons((uint16_t)atoi(colon + 1));
	*ret = (union port_address){ 0 };
	ret->any.sa_family = is_v6 ? AF_INET6 : AF_INET;
	if (is_v6)
		ret->v6.sin6_port = port;
	else
		ret->v4.sin_port = port;
	void *to = is_v6 ? (void *)&ret->v6.sin6_addr : (void *)&ret->v4.sin_addr;
	if (!port || inet_pton(ret->any.sa_family, host, to) != 1)
		return 0;
	return is_v6 ? sizeof(ret->v6) : sizeof(ret->v4);
}

/* As IPv6 writes it; all of IPv4 is all zero, as is all of IPv6. */
static void address_bytes(uint8_t ret[static V6_BYTES], int family, const void *address)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	memset(ret, 0, V6_BYTES);
	if (family == AF_INET6) {
		memcpy(ret, address, V6_BYTES);
	} else {
		memcpy(ret, mapped, sizeof(mapped));
		memcpy(ret + sizeof(mapped), address, sizeof(struct in_addr));
	}
	if (!memcmp(ret, mapped, sizeof(mapped)) &&
	    !memcmp(ret + sizeof(mapped), (uint8_t[4]){ 0 }, 4))
		memset(ret, 0, V6_BYTES);
}

/* Whether a socket there is in the way of one at @address. */
static bool is_at(const struct inet_diag_msg *m, const union port_address *address)
{
	static const uint8_t all[V6_BYTES];
	uint8_t one[V6_BYTES], other[V6_BYTES];
	bool is_v6 = address->any.sa_family == AF_INET6;

	if (m->id.idiag_sport != port_of(address))
		return false;
	address_bytes(one, m->idiag_family, m->id.idiag_src);
	address_bytes(other, address->any.sa_family,
		      is_v6 ? (const void *)&address->v6.sin6_addr : &address->v4.sin_addr);
	return !memcmp(one, other, V6_BYTES) || !memcmp(one, all, V6_BYTES) ||
	       !memcmp(other, all, V6_BYTES);
}

/* ---- who has it ---- */

static bool has_socket(pid_t pid, const char *name)
{
	auto_closedir DIR *dir = proc_dir_open(pid, "fd");
	char target[64];
	struct dirent *e;

	while (dir && dir_next(dir, &e) > 0) {
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		if (!strcmp(target, name))
			return true;
	}
	return false;
}

int port_find_holder(struct proc_info *ret, unsigned inode)
{
	auto_closedir DIR *dir = inode ? dir_open(AT_FDCWD, "/proc") : NULL;
	char name[32];
	pid_t pid;

	snprintf(name, sizeof(name), "socket:[%u]", inode);
	while (dir && proc_next(dir, &pid) > 0)
		if (has_socket(pid, name) && proc_read(ret, pid, NULL) == 0)
			return 1;
	return 0;
}

/* ---- files of unix sockets ---- */

/* The kernel's own form of a device number, and the lower half of that of an inode. Where file systems tell another device
 * to stat(2) than they have (overlayfs, btrfs), it is none of a disk. */
static bool is_file(const struct unix_diag_vfs *at, const struct stat *st)
{
	return at->udiag_vfs_ino == (uint32_t)st->st_ino &&
	       (at->udiag_vfs_dev == (major(st->st_dev) << 20 | minor(st->st_dev)) ||
		!major(st->st_dev));
}

static int find_file(const struct nlmsghdr *h, const struct stat *st)
{
	int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(struct unix_diag_msg));
	const struct unix_diag_msg *m = NLMSG_DATA(h);

	for (const struct rtattr *a = (const void *)(m + 1); RTA_OK(a, left); a = RTA_NEXT(a, left))
		if (a->rta_type == UNIX_DIAG_VFS && RTA_PAYLOAD(a) >= sizeof(struct unix_diag_vfs))
			return is_file(RTA_DATA(a), st);
	return -ENODATA;
}

int port_is_at_file(unsigned inode, const struct stat *st)
{
	const struct unix_diag_req one = {
		.sdiag_family = AF_UNIX,
		.udiag_states = ~0u,
		.udiag_ino = inode,
		.udiag_show = UDIAG_SHOW_VFS,
		.udiag_cookie = { INET_DIAG_NOCOOKIE, INET_DIAG_NOCOOKIE },
	};
	_Alignas(struct nlmsghdr) char buf[1024];
	auto_close int fd = open_diagnosis();

	int r = fd < 0 ? fd : send_request(fd, SOCK_DIAG_BY_FAMILY, 0, &one, sizeof(one));
	ssize_t n = r < 0 ? 0 : recv(fd, buf, sizeof(buf), 0);
	const struct nlmsghdr *h = (void *)buf;

	if (r < 0 || n < 0)
		return r < 0 ? r : -errno;
	if (!NLMSG_OK(h, (unsigned)n))
		return -EBADMSG;
	if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY) /* it has ended, or this kernel does not tell */
		return -ENOENT;
	return find_file(h, st);
}

/* ---- look ---- */

struct look {
	const union port_address *address;
	struct port_use use;
	unsigned inode;
};

static int look_at(void *arg, const struct nlmsghdr *answer)
{
	const struct inet_diag_msg *m = NLMSG_DATA(answer);
	struct look *look = arg;

	if (!is_at(m, look->address))
		return 0;
	if (m->idiag_state == TCP_TIME_WAIT) {
		look->use.n_ended++;
		return 0;
	}
	look->use.n_sockets++;
	/* A connection may keep a port, too, but the listener is its holder. */
	if (!look->inode || !m->id.idiag_dport)
		look->inode = m->idiag_inode;
	return 0;
}

int port_look(struct port_use *ret, const union port_address *address, bool is_tcp,
	      struct brumate_error *err)
{
	struct look look = { .address = address };
	struct proc_info holder;
	int r = each_socket(is_tcp, look_at, &look);

	if (r < 0)
		return brumate_fail(err, -r, "the kernel does not tell who has port %u: %m",
				    ntohs(port_of(address)));
	if (port_find_holder(&holder, look.inode)) {
		look.use.pid = holder.id.pid;
		snprintf(look.use.comm, sizeof(look.use.comm), "%s", holder.comm);
	}
	*ret = look.use;
	return 0;
}

/* ---- forget ---- */

struct ended {
	const union port_address *address, *peer; /* @peer NULL: any */
	bool is_open;				  /* one that has not ended is meant */
};

/* One that has no inode has been closed by its process, and waits for the other end. */
static bool is_ended(const struct inet_diag_msg *m, const struct ended *e)
{
	const unsigned closing =
		1u << TCP_FIN_WAIT1 | 1u << TCP_FIN_WAIT2 | 1u << TCP_CLOSING | 1u << TCP_LAST_ACK;
	struct inet_diag_msg other = *m;

	other.id.idiag_sport = m->id.idiag_dport;
	memcpy(other.id.idiag_src, m->id.idiag_dst, sizeof(other.id.idiag_src));
	if (!is_at(m, e->address) || (e->peer && !is_at(&other, e->peer)))
		return false;
	if (e->is_open)
		return m->idiag_state == TCP_ESTABLISHED;
	return m->idiag_state == TCP_TIME_WAIT ||
	       (e->peer && !m->idiag_inode && 1u << m->idiag_state & closing);
}

/* Asked by another socket: this one is still being answered. One that has gone by itself is as good. */
static int forget_socket(void *arg, const struct nlmsghdr *answer)
{
	const struct inet_diag_msg *m = NLMSG_DATA(answer);
	const struct inet_diag_req_v2 one = { .sdiag_family = m->idiag_family,
					      .sdiag_protocol = IPPROTO_TCP,
					      .idiag_states = 1u << m->idiag_state,
					      .id = m->id };
	char buf[NLMSG_SPACE(sizeof(struct nlmsgerr)) + 256];

	if (!is_ended(m, arg))
		return 0;

	auto_close int ask = open_diagnosis();
	int r = ask < 0 ? ask : send_request(ask, SOCK_DESTROY, NLM_F_ACK, &one, sizeof(one));
	ssize_t n = r < 0 ? 0 : recv(ask, buf, sizeof(buf), 0);
	const struct nlmsghdr *h = (void *)buf;

	if (r < 0 || n < 0)
		return r < 0 ? r : -errno;
	if (!NLMSG_OK(h, (unsigned)n) || h->nlmsg_type != NLMSG_ERROR ||
	    h->nlmsg_len < NLMSG_LENGTH(sizeof(struct nlmsgerr)))
		return -EBADMSG;
	r = ((const struct nlmsgerr *)NLMSG_DATA(h))->error;
	return r == -ENOENT ? 0 : r;
}

int port_forget_ended(const union port_address *address, struct brumate_error *err)
{
	return port_forget_connection(address, NULL, err);
}

int port_forget_connection(const union port_address *address, const union port_address *peer,
			   struct brumate_error *err)
{
	struct ended e = { address, peer, false };
	int r = each_socket(true, forget_socket, &e);

	return r < 0 ? brumate_fail(err, -r, "connections that have ended at port %u: %m",
				    ntohs(port_of(address)))
		     : 0;
}

int port_reset_connection(const union port_address *address, const union port_address *peer)
{
	struct ended e = { address, peer, true };

	return each_socket(true, forget_socket, &e);
}
