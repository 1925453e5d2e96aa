// SPDX-License-Identifier: MIT
/* Options of sockets as text, there and back; read from a little process, and set at another. */
#include "little.h"
#include "process/socket-options.h"

#include <netinet/in.h>
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/socket.h>

static char notes[4096];

static void note(void *arg, const char *text)
{
	(void)arg;
	snprintf(notes + strlen(notes), sizeof(notes) - strlen(notes), "%s\n", text);
}

enum { TCP_FD = 100, UDP_FD, UNIX_FD, COPY_FD, UDP6_FD };
enum { USER_TIMEOUT_MS = 1234, KEEP_IDLE_S = 77 };

static void have(int number, int fd)
{
	CHECK(fd >= 0 && dup2(fd, number) == number);
	close(fd);
}

/* Two groups, of each family. */
static void join_groups(void)
{
	struct ip_mreqn m = { .imr_ifindex = 1 };
	struct ipv6_mreq m6 = { .ipv6mr_interface = 1 };

	for (int i = 1; i <= 2; i++) {
		m.imr_multiaddr.s_addr = htonl(0xef010200u + (unsigned)i);
		CHECK(inet_pton(AF_INET6, i == 1 ? "ff11::1234" : "ff11::5678",
				&m6.ipv6mr_multiaddr) == 1);
		CHECK(setsockopt(UDP_FD, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof(m)) == 0);
		CHECK(setsockopt(UDP6_FD, IPPROTO_IPV6, IPV6_JOIN_GROUP, &m6, sizeof(m6)) == 0);
	}
}

static void have_sockets(void *arg)
{
	const bool with_options = arg;
	const int one = 1, timeout_ms = USER_TIMEOUT_MS, idle_s = KEEP_IDLE_S;
	const struct linger linger = { 1, 5 };

	have(TCP_FD, socket(AF_INET6, SOCK_STREAM, 0));
	have(UDP_FD, socket(AF_INET, SOCK_DGRAM, 0));
	have(UDP6_FD, socket(AF_INET6, SOCK_DGRAM, 0));
	have(UNIX_FD, socket(AF_UNIX, SOCK_DGRAM, 0));
	CHECK(dup2(TCP_FD, COPY_FD) == COPY_FD);
	if (with_options) {
		join_groups();
		CHECK(setsockopt(TCP_FD, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof(int)) ==
		      0);
		CHECK(setsockopt(TCP_FD, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(int)) == 0);
		CHECK(setsockopt(TCP_FD, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) == 0);
		CHECK(setsockopt(UDP_FD, SOL_SOCKET, SO_BROADCAST, &one, sizeof(int)) == 0);
		CHECK(setsockopt(UNIX_FD, SOL_SOCKET, SO_PASSCRED, &one, sizeof(int)) == 0);
	} else {
		CHECK(setsockopt(TCP_FD, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(int)) == 0);
	}
	little_ready();
	pause();
}

static void read_of(struct socket_options *ret, struct proc_tree *tree, const struct little *l)
{
	CHECK(proc_tree_read(tree, little_id(l), NULL) == 0);
	CHECK(socket_options_read(ret, tree) == 0 && ret->n > 0);
}

static const struct socket_option *find(const struct socket_options *o, int fd, int level, int name)
{
	const struct socket_option *found = NULL;

	for (size_t i = 0; i < o->n; i++)
		if (o->items[i].fd == fd && o->items[i].level == level && o->items[i].name == name)
			found = &o->items[i];
	return found;
}

static int int_of(const struct socket_options *o, int fd, int level, int name)
{
	const struct socket_option *s = find(o, fd, level, name);
	int value;

	CHECK(s && s->len_bytes == sizeof(value));
	memcpy(&value, s->value, sizeof(value));
	return value;
}

/* What was saved of one process is given to another, which stands in for it. */
static void set_again(void)
{
	struct little saved = little_start(have_sockets, (void *)1),
		      restored = little_start(have_sockets, NULL);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY, other = PROC_TREE_EMPTY;
	auto_(socket_options_fini) struct socket_options o = SOCKET_OPTIONS_EMPTY,
							 now = SOCKET_OPTIONS_EMPTY;

	little_wait_ready(&saved);
	little_wait_ready(&restored);
	read_of(&o, &tree, &saved);
	CHECK(!find(&o, COPY_FD, SOL_SOCKET, SO_LINGER) !=
	      !find(&o, TCP_FD, SOL_SOCKET, SO_LINGER)); /* once */
	for (size_t i = 0; i < o.n; i++)
		o.items[i].pid = restored.pid;
	auto_(proc_tree_fini) struct proc_tree again = PROC_TREE_EMPTY;
	CHECK(proc_tree_read(&other, little_id(&restored), NULL) == 0);
	CHECK(socket_options_apply(&o, &other, geteuid(), getegid(), note, NULL) == 0);
	CHECK_STR(notes, "");
	read_of(&now, &again, &restored);
	const int tcp = find(&now, TCP_FD, SOL_SOCKET, SO_LINGER) ? TCP_FD : COPY_FD;
	CHECK(int_of(&now, tcp, IPPROTO_TCP, TCP_USER_TIMEOUT) == USER_TIMEOUT_MS);
	CHECK(int_of(&now, tcp, IPPROTO_TCP, TCP_KEEPIDLE) == KEEP_IDLE_S);
	CHECK(int_of(&now, tcp, SOL_SOCKET, SO_REUSEPORT) == 0);
	CHECK(int_of(&now, UDP_FD, SOL_SOCKET, SO_BROADCAST) == 1);
	CHECK(int_of(&now, UNIX_FD, SOL_SOCKET, SO_PASSCRED) == 1);
	CHECK(find(&o, UDP_FD, IPPROTO_IP, IP_ADD_MEMBERSHIP) &&
	      find(&o, UDP6_FD, IPPROTO_IPV6, IPV6_JOIN_GROUP));
	CHECK(now.n == o.n);
	for (size_t i = 0; i < o.n; i++)
		CHECK(!memcmp(&o.items[i], &now.items[i], sizeof(o.items[i])));
	little_end(&saved);
	little_end(&restored);
}

/* One that asks for credentials gets a name as soon as it sends. */
static void have_pair(void *arg)
{
	const int on = 1;
	int pair[2];

	CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) == 0);
	have(UNIX_FD, pair[0]);
	if (arg)
		CHECK(setsockopt(UNIX_FD, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
		      send(UNIX_FD, "x", 1, 0) == 1);
	little_ready();
	pause();
}

static void named_again(void)
{
	enum { ITS_NAME = -1 };
	struct little saved = little_start(have_pair, (void *)1);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY, other = PROC_TREE_EMPTY,
					       again = PROC_TREE_EMPTY;
	auto_(socket_options_fini) struct socket_options o = SOCKET_OPTIONS_EMPTY,
							 now = SOCKET_OPTIONS_EMPTY;

	little_wait_ready(&saved);
	read_of(&o, &tree, &saved);
	little_end(&saved);
	const struct socket_option *name = find(&o, UNIX_FD, SOL_SOCKET, ITS_NAME);
	CHECK(name && name->len_bytes == 8 && !name->value[2]);
	struct little restored = little_start(have_pair, NULL);
	little_wait_ready(&restored);
	for (size_t i = 0; i < o.n; i++)
		o.items[i].pid = restored.pid;
	CHECK(proc_tree_read(&other, little_id(&restored), NULL) == 0);
	CHECK(socket_options_apply(&o, &other, geteuid(), getegid(), note, NULL) == 0);
	CHECK_STR(notes, "");
	read_of(&now, &again, &restored);
	const struct socket_option *has = find(&now, UNIX_FD, SOL_SOCKET, ITS_NAME);
	CHECK(has && has->len_bytes == name->len_bytes &&
	      !memcmp(has->value, name->value, has->len_bytes));
	little_end(&restored);
}

static void what_cannot_be_set_is_noted(void)
{
	struct little l = little_start(have_sockets, NULL);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(socket_options_fini) struct socket_options o = SOCKET_OPTIONS_EMPTY;
	static const char record[] =
		"brumate sockets 1\n%d 100 6 13 6e6f6e65\n%d 100 1 9999 01\n%d 999 1 9 01000000\n";
	char text[256];

	little_wait_ready(&l);
	CHECK(proc_tree_read(&tree, little_id(&l), NULL) == 0);
	snprintf(text, sizeof(text), record, l.pid, l.pid, l.pid);
	CHECK(socket_options_decode(&o, text, strlen(text)) == 0 && o.n == 3);
	notes[0] = '\0';
	CHECK(socket_options_apply(&o, &tree, geteuid(), getegid(), note, NULL) == 0);
	/* A congestion control that is not here; what we do not know, and a socket that is not there, nobody touches. */
	CHECK(strstr(notes, "socket 100 is without its option TCP_CONGESTION: "));
	CHECK(strchr(notes, '\n') == strrchr(notes, '\n'));
	little_end(&l);
}

static void there_and_back(void)
{
	static const char text[] =
		"brumate sockets 1\n1 3 1 9 01000000\n1 3 6 13 6375\n2 0 1 13 -\n";
	static const char *const wrong[] = {
		"",
		"brumate sockets 2\n",
		"brumate sockets 1\n1 3 1 9 0100000",
		"brumate sockets 1\n1 3 1 9 010\n",
		"brumate sockets 1\n1 3 1 9 0g\n",
		"brumate sockets 1\n0 3 1 9 00\n",
		"brumate sockets 1\n1 -3 1 9 00\n",
		"brumate sockets 1\n1 3 1 9\n",
		"brumate sockets 1\n1 3 1 9 00 more\n",
		"brumate sockets 1\n\n",
		("brumate sockets 1\n1 3 6 13 "
		 "000000000000000000000000000000000000000000000000000000000000000000\n"),
	};
	auto_(socket_options_fini) struct socket_options o = SOCKET_OPTIONS_EMPTY;
	size_t len = 0;

	CHECK(socket_options_decode(&o, text, strlen(text)) == 0 && o.n == 3);
	auto_free char *again = socket_options_encode(&o, &len);
	CHECK_STR(again, text);
	for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++) {
		auto_(socket_options_fini) struct socket_options w = SOCKET_OPTIONS_EMPTY;

		CHECK(socket_options_decode(&w, wrong[i], strlen(wrong[i])) == -EBADMSG);
	}
}

int main(void)
{
	there_and_back();
	set_again();
	named_again();
	what_cannot_be_set_is_noted();
	return 0;
}
