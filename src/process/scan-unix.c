// SPDX-License-Identifier: MIT
/* Unix sockets that lead out of a tree. Only the kernel's socket diagnosis tells who the peer is. */
#include "base/cleanup.h"
#include "process/scan-private.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { ANSWER_BYTES = 64 * 1024, ANSWER_TIMEOUT_S = 5, NAME_BYTES = 108 };

struct unix_socket {
	unsigned inode, peer; /* peer 0: not connected */
	int type;
	char name[NAME_BYTES + 1]; /* of the peer's address or its own */
};

static int ask(int fd)
{
	struct {
		struct nlmsghdr header;
		struct unix_diag_req req;
	} msg = {
		.header = {
			.nlmsg_len = sizeof(msg),
			.nlmsg_type = SOCK_DIAG_BY_FAMILY,
			.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP,
		},
		.req = {
			.sdiag_family = AF_UNIX,
			.udiag_states = ~0u,
			.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_PEER,
		},
	};
	struct timeval timeout = { .tv_sec = ANSWER_TIMEOUT_S };

	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
	    send(fd, &msg, sizeof(msg), 0) < 0)
		return -errno;
	return 0;
}

static void parse(struct unix_socket *ret, const struct nlmsghdr *h)
{
	const struct unix_diag_msg *d = NLMSG_DATA(h);
	int left = (int)(h->nlmsg_len - NLMSG_LENGTH(sizeof(*d)));

	*ret = (struct unix_socket){ .inode = d->udiag_ino, .type = d->udiag_type };
	for (const struct rtattr *a = (const void *)(d + 1); RTA_OK(a, left);
	     a = RTA_NEXT(a, left)) {
		size_t len = RTA_PAYLOAD(a);

		if (a->rta_type == UNIX_DIAG_PEER && len >= sizeof(ret->peer))
			memcpy(&ret->peer, RTA_DATA(a), sizeof(ret->peer));
		if (a->rta_type == UNIX_DIAG_NAME)
			memcpy(ret->name, RTA_DATA(a), len < NAME_BYTES ? len : NAME_BYTES);
	}
}

static void look_at(struct scan *s, const struct unix_socket *u)
{
	const struct scan_fd *f = scan_find_inode(s, "socket:", u->inode);

	if (!f || !u->peer || scan_find_inode(s, "socket:", u->peer))
		return;
	if (u->type == SOCK_DGRAM)
		scan_find(s, SCAN_NOTE, SCAN_CRIU, f->process, "unix-socket",
			  "it is connected again by its name at the restore",
			  "sends to a unix socket outside the job (fd %d)", f->fd);
	else
		scan_find(s, SCAN_REFUSE, SCAN_CRIU, f->process, "unix-socket",
			  "close it before the checkpoint, or run both ends in one job",
			  "is connected to a process outside the job by a unix socket (fd %d)",
			  f->fd);
}

/* The peer of a connection to MPS is unnamed on our side: its own end carries the name. */
static void look_for_mps(struct scan *s, const struct unix_socket *u)
{
	const struct scan_fd *f = u->peer ? scan_find_inode(s, "socket:", u->peer) : NULL;

	if (f && strstr(u->name, "nvidia-mps"))
		scan_find(s, SCAN_REFUSE, SCAN_GPU, f->process, "mps", "run it without MPS",
			  "uses the GPU through MPS, which the driver cannot save");
}

/* 1: more to come, 0: that was all */
static int read_answer(struct scan *s, int fd, char *buf)
{
	ssize_t n = recv(fd, buf, ANSWER_BYTES, 0);

	if (n < 0)
		return errno == EINTR ? 1 : -errno;

	unsigned left = (unsigned)n;
	for (const struct nlmsghdr *h = (void *)buf; NLMSG_OK(h, left); h = NLMSG_NEXT(h, left)) {
		struct unix_socket u;

		if (h->nlmsg_type == NLMSG_DONE)
			return 0;
		if (h->nlmsg_type == NLMSG_ERROR)
			return ((const struct nlmsgerr *)NLMSG_DATA(h))->error;
		if (h->nlmsg_len < NLMSG_LENGTH(sizeof(struct unix_diag_msg)))
			return -EBADMSG;
		parse(&u, h);
		look_at(s, &u);
		look_for_mps(s, &u);
	}
	return n > 0;
}

void scan_check_unix(struct scan *s)
{
	auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
	auto_free char *buf = malloc(ANSWER_BYTES);
	int r = fd < 0 ? -errno : !buf ? -ENOMEM : ask(fd);

	if (r == 0)
		while ((r = read_answer(s, fd, buf)) > 0)
			;
	if (r < 0 && s->tree->n)
		scan_find(s, SCAN_NOTE, SCAN_CRIU, &s->tree->items[0], "unix-socket",
			  "the kernel needs CONFIG_UNIX_DIAG for this",
			  "may have unix sockets to outside the job: the kernel does not tell (%s)",
			  strerror(-r));
}
