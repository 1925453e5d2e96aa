// SPDX-License-Identifier: MIT
/*
 * The lock of TCP connections during a dump. CRIU has three: iptables runs programs, which a small
 * machine does not have; "skip" lets the kernel answer a peer's packet with a reset between kill and
 * restore (seen: a client that talks meanwhile loses its connection); nftables drops those packets,
 * needs no program, and is what is used where the kernel has it. Its table goes when CRIU resumes or
 * restores the tree; when CRIU is killed, it is removed here, or the job would be cut off for ever.
 */
#include "base/cleanup.h"
#include "process/net-lock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 1024, ANSWER_TIMEOUT_S = 5 };

struct batch {
	_Alignas(struct nlmsghdr) char buf[MESSAGE_BYTES];
	size_t len;
};

static struct nlmsghdr *batch_add(struct batch *b, uint16_t type, uint16_t flags, uint8_t family,
				  uint16_t resource)
{
	struct nlmsghdr *h = (void *)(b->buf + b->len);
	struct nfgenmsg *g = NLMSG_DATA(h);

	memset(h, 0, NLMSG_SPACE(sizeof(*g)));
	h->nlmsg_len = NLMSG_LENGTH(sizeof(*g));
	h->nlmsg_type = type;
	h->nlmsg_flags = NLM_F_REQUEST | flags;
	g->nfgen_family = family;
	g->version = NFNETLINK_V0;
	g->res_id = htons(resource);
	b->len += NLMSG_ALIGN(h->nlmsg_len);
	return h;
}

static void batch_add_name(struct batch *b, struct nlmsghdr *h, uint16_t type, const char *name)
{
	struct nlattr *a = (void *)(b->buf + b->len);
	size_t len = strlen(name) + 1;

	memset(a, 0, NLA_HDRLEN + NLA_ALIGN(len));
	a->nla_type = type;
	a->nla_len = (uint16_t)(NLA_HDRLEN + len);
	memcpy((char *)a + NLA_HDRLEN, name, len);
	b->len += NLA_ALIGN(a->nla_len);
	h->nlmsg_len += NLA_ALIGN(a->nla_len);
}

/* Sends, and returns what the kernel says first: 0 (an answer or an acknowledgement) or -errno. */
static int exchange(const struct batch *b)
{
	auto_close int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
	struct timeval timeout = { .tv_sec = ANSWER_TIMEOUT_S };
	_Alignas(struct nlmsghdr) char answer[8192];

	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) < 0 ||
	    send(fd, b->buf, b->len, 0) < 0)
		return -errno;

	ssize_t n = recv(fd, answer, sizeof(answer), 0);
	if (n < 0)
		return -errno;

	const struct nlmsghdr *h = (void *)answer;
	if (!NLMSG_OK(h, (size_t)n))
		return -EBADMSG;
	return h->nlmsg_type == NLMSG_ERROR ? ((struct nlmsgerr *)NLMSG_DATA(h))->error : 0;
}

bool net_lock_is_possible(void)
{
	struct batch b = { .len = 0 };

	batch_add(&b, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_GETGEN, 0, AF_UNSPEC, 0);
	return exchange(&b) == 0;
}

int net_lock_remove(const char *name)
{
	struct batch b = { .len = 0 };

	if (strlen(name) >= MESSAGE_BYTES / 2)
		return -EINVAL;
	batch_add(&b, NFNL_MSG_BATCH_BEGIN, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
	struct nlmsghdr *h = batch_add(&b, NFNL_SUBSYS_NFTABLES << 8 | NFT_MSG_DELTABLE, NLM_F_ACK,
				       NFPROTO_INET, 0);
	batch_add_name(&b, h, NFTA_TABLE_NAME, name);
	batch_add(&b, NFNL_MSG_BATCH_END, 0, AF_UNSPEC, NFNL_SUBSYS_NFTABLES);
	return exchange(&b);
}
