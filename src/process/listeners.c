// SPDX-License-Identifier: MIT
/* TCP sockets that listen, held for a tree that has ended; see listeners.h. */
#include "process/listeners.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "process/socket-options.h"

enum { BACKLOG = 4096, ESTABLISHED = 1, LISTENING = 10 }; /* states as the kernel numbers them */

void listeners_fini(struct listeners *l)
{
	for (size_t i = 0; i < l->n; i++)
		cleanup_close(&l->items[i].fd);
	l->n = 0;
}

static void name_of(char ret[static LISTENER_NAME_BYTES], const union port_address *a)
{
	const bool is_v6 = a->any.sa_family == AF_INET6;
	char host[INET6_ADDRSTRLEN] = "?";

	inet_ntop(a->any.sa_family, is_v6 ? (const void *)&a->v6.sin6_addr : &a->v4.sin_addr, host,
		  sizeof(host));
	snprintf(ret, LISTENER_NAME_BYTES, is_v6 ? "[%s]:%u" : "%s:%u", host,
		 ntohs(is_v6 ? a->v6.sin6_port : a->v4.sin_port));
}

static int number_of(int fd, int level, int option)
{
	socklen_t len = sizeof(int);
	int value = -1;

	return getsockopt(fd, level, option, &value, &len) < 0 ? -1 : value;
}

/* ---- finding ---- */

/* A connection of the tree. */
struct accepted {
	char own[LISTENER_NAME_BYTES], peer[LISTENER_NAME_BYTES];
	bool waits; /* the other end waits for an answer, as far as the kernel can tell */
	pid_t pid;
	char comm[PROC_COMM_BYTES];
};

struct look {
	struct listeners found; /* of copies, or without (fd -1) */
	bool copies;
	struct accepted *accepted;
	size_t n_accepted;
	struct brumate_error *err;
};

static int refuse(struct look *l, const char *what, const char *name)
{
	brumate_fail(l->err, EOPNOTSUPP, "the job listens at %s%s", what, name);
	brumate_hint(l->err, "without --wake it can be saved; `brumate restore` brings it back");
	return -EOPNOTSUPP;
}

static int add_listener(struct look *l, const char *name, int fd)
{
	struct listeners *found = &l->found;

	if (listeners_have(found, name))
		return refuse(l, "one address with several sockets: ", name);
	if (found->n == LISTENERS_MAX)
		return refuse(l, "more TCP ports than are held: ", name);
	struct listener *one = &found->items[found->n];
	*one = (struct listener){ .fd = l->copies ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1 };
	if (l->copies && one->fd < 0)
		return -errno;
	snprintf(one->name, sizeof(one->name), "%s", name);
	found->n++;
	return 0;
}

/* What the other end has sent is newer than what it was sent, or it was sent nothing yet. */
static bool is_unanswered(const struct tcp_info *t)
{
	return t->tcpi_bytes_received &&
	       (!t->tcpi_bytes_sent || t->tcpi_last_data_recv < t->tcpi_last_data_sent);
}

static int look_at(void *arg, const struct proc_info *info, int number, int fd)
{
	struct accepted a = { .pid = info->id.pid };
	union port_address own, peer;
	socklen_t own_len = sizeof(own), peer_len = sizeof(peer), tcp_len = sizeof(struct tcp_info);
	struct tcp_info tcp = { 0 };
	struct look *l = arg;

	(void)number;
	if (number_of(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP ||
	    number_of(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM ||
	    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &tcp, &tcp_len) < 0 ||
	    getsockname(fd, &own.any, &own_len) < 0)
		return 0;
	name_of(a.own, &own);
	if (tcp.tcpi_state == LISTENING)
		return add_listener(l, a.own, fd);
	if (tcp.tcpi_state != ESTABLISHED || getpeername(fd, &peer.any, &peer_len) < 0)
		return 0;
	name_of(a.peer, &peer);
	a.waits = is_unanswered(&tcp);
	snprintf(a.comm, sizeof(a.comm), "%s", info->comm);
	return array_add(l->accepted, l->n_accepted, a);
}

static const char *port_in(const char *name)
{
	return strrchr(name, ':');
}

static bool is_within(const struct look *l, const struct accepted *a)
{
	for (size_t i = 0; i < l->n_accepted; i++)
		if (!strcmp(l->accepted[i].own, a->peer) && !strcmp(l->accepted[i].peer, a->own))
			return true;
	return false;
}

static bool is_at_listener(const struct look *l, const struct accepted *a)
{
	for (size_t i = 0; i < l->found.n; i++)
		if (!strcmp(port_in(l->found.items[i].name), port_in(a->own)))
			return true;
	return false;
}

/* Whether it was accepted from outside at a port that is to be held. */
static bool is_client(const struct look *l, const struct accepted *a)
{
	return is_at_listener(l, a) && !is_within(l, a);
}

static int refuse_client(struct look *l, const struct accepted *a)
{
	brumate_fail(l->err, EBUSY, "process %d (%s) %s %s at %s", a->pid, a->comm,
		     a->waits ? "has yet to answer" : "is connected to", a->peer, a->own);
	brumate_hint(l->err, "try again, or save it without --wake");
	return -EBUSY;
}

static int refuse_clients(struct look *l, bool all)
{
	for (size_t i = 0; i < l->n_accepted; i++)
		if ((all || l->accepted[i].waits) && is_client(l, &l->accepted[i]))
			return refuse_client(l, &l->accepted[i]);
	return 0;
}

/* Without a copy of its descriptor: while there is one, an epoll goes on reporting what its program has closed. */
static int reset_clients(struct look *l)
{
	for (size_t i = 0; i < l->n_accepted; i++) {
		const struct accepted *a = &l->accepted[i];
		union port_address own, peer;

		if (is_client(l, a) &&
		    (!port_address_parse(&own, a->own) || !port_address_parse(&peer, a->peer) ||
		     port_reset_connection(&own, &peer) < 0))
			return refuse_client(l, a);
	}
	return 0;
}

static int look(struct look *l, const struct proc_tree *tree)
{
	int r = sockets_each(tree, look_at, l);

	if (r < 0)
		return l->err && l->err->code ? r : brumate_fail(l->err, -r, "%s", strerror(-r));
	if (!l->found.n) {
		brumate_fail(l->err, EOPNOTSUPP,
			     "the job listens at no TCP port, so nothing would wake it");
		brumate_hint(l->err, "without --wake it can be saved; `brumate restore` brings it "
				     "back");
		return -EOPNOTSUPP;
	}
	return refuse_clients(l, l->copies);
}

int listeners_take(struct listeners *ret, const struct proc_tree *tree, struct brumate_error *err)
{
	struct look l = { .copies = true, .err = err };
	int r = look(&l, tree);

	free(l.accepted);
	if (r < 0)
		listeners_fini(&l.found);
	else
		*ret = l.found;
	return r;
}

int listeners_prepare(const struct proc_tree *tree, struct brumate_error *err)
{
	struct look l = { .err = err };
	int r = look(&l, tree);

	if (r == 0)
		r = reset_clients(&l);
	free(l.accepted);
	return r;
}

/* ---- names ---- */

void listeners_names(char ret[static LISTENERS_BYTES], const struct listeners *l)
{
	size_t used = 0;

	*ret = '\0';
	for (size_t i = 0; i < l->n; i++)
		used += (size_t)snprintf(ret + used, LISTENERS_BYTES - used, i ? " %s" : "%s",
					 l->items[i].name);
}

bool listeners_have(const struct listeners *l, const char *name)
{
	for (size_t i = 0; i < l->n; i++)
		if (!strcmp(l->items[i].name, name))
			return true;
	return false;
}

bool listeners_are_at(const struct listeners *l, const char *names)
{
	auto_free char *copy = strdup(names);
	char *rest = copy && *copy ? copy : NULL;
	size_t n = 0;

	if (!copy)
		return false;
	for (char *name; (name = strsep(&rest, " ")); n++)
		if (!listeners_have(l, name))
			return false;
	return n == l->n;
}

/* ---- in the place of lost ones ---- */

static int bind_one(struct listeners *l, const char *name, struct brumate_error *err)
{
	const int on = 1;
	union port_address a;
	const socklen_t len = port_address_parse(&a, name);
	auto_close int fd = len ? socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0) : -1;

	if (!len || l->n == LISTENERS_MAX)
		return brumate_fail(err, EBADMSG, "%s: not an address to listen at", name);
	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (fd < 0 || bind(fd, &a.any, len) < 0 || listen(fd, BACKLOG) < 0)
		return brumate_fail(err, errno, "%s: %m", name);
	struct listener *one = &l->items[l->n++];
	*one = (struct listener){ .fd = take_fd(&fd) };
	snprintf(one->name, sizeof(one->name), "%s", name);
	return 0;
}

int listeners_bind(struct listeners *ret, const char *names, struct brumate_error *err)
{
	auto_(listeners_fini) struct listeners l = LISTENERS_EMPTY;
	auto_free char *copy = strdup(names);
	char *rest = copy;
	int r = copy ? 0 : brumate_fail(err, ENOMEM, "%m");

	for (char *name; r == 0 && (name = strsep(&rest, " "));)
		r = bind_one(&l, name, err);
	if (r == 0)
		*ret = take_struct(l, LISTENERS_EMPTY);
	return r;
}

/* ---- given ---- */

int listeners_add(struct listeners *l, int fd, struct brumate_error *err)
{
	auto_close int given = fd;
	struct listener *one = &l->items[l->n];
	union port_address a;
	socklen_t len = sizeof(a);

	if (l->n == LISTENERS_MAX)
		return brumate_fail(err, E2BIG, "more sockets than are held");
	if (getsockname(given, &a.any, &len) < 0 ||
	    number_of(given, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP ||
	    number_of(given, SOL_SOCKET, SO_ACCEPTCONN) != 1)
		return brumate_fail(err, EINVAL,
				    "socket %zu of LISTEN_FDS is not one of TCP that listens",
				    l->n + 1);
	name_of(one->name, &a);
	one->fd = take_fd(&given);
	l->n++;
	return 0;
}

/* ---- hanging up ---- */

void listener_hang_up(const struct listeners *l, size_t i)
{
	const struct linger at_once = { .l_onoff = 1 };
	const int listening = l->items[i].fd, flags = fcntl(listening, F_GETFL);
	int fd;

	/* The socket is the job's, too, which may have it block. */
	fcntl(listening, F_SETFL, flags | O_NONBLOCK);
	while ((fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC)) >= 0) {
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
		close(fd);
	}
	fcntl(listening, F_SETFL, flags);
}
