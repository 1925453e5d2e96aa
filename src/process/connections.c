// SPDX-License-Identifier: MIT
/* TCP connections within a tree, looked at and made again; see connections.h. */
#include "process/connections.h"

#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/chunk.h"
#include "base/clock.h"
#include "process/ports.h"
#include "process/socket-options.h"

#define HEADING "brumate connections 1\n"

enum {
	SETTLE_MS = 500, /* the kernel delivers what is under way on one machine in less than 1 */
	MAKE_TIMEOUT_MS = 5000,
	LOCAL_PORT_RANGE = 51, /* ip(7), IP_LOCAL_PORT_RANGE, which older headers lack */
	ENDED_MS = 65000,      /* the kernel forgets a connection that has ended after 60 s */
	CHALLENGE_BYTES = 32,
	TRY_MS = 5,
	OFFER_MS = 50,
	OTHERS_TIMEOUT_MS =
		600000, /* the others have files to copy before; mostly their coordinator gives up earlier */
	SMALL_BYTES = 32 << 10, /* any new connection has room for it */
	LOCK_SEND = 1,		/* SO_BUF_LOCK, socket(7) */
	LOCK_RECEIVE = 2,
};

/* The kernel's numbers of the states; the header that names them collides with that of TCP_INFO. */
enum state {
	ESTABLISHED = 1,
	FIN_WAIT1 = 4,
	FIN_WAIT2 = 5,
	CLOSED = 7,
	CLOSE_WAIT = 8,
	LISTENING = 10
};

void connections_fini(struct connections *c)
{
	for (size_t i = 0; i < c->n; i++)
		for (int k = 0; k < 2; k++) {
			cleanup_close(&c->items[i].ends[k].fd);
			free(c->items[i].ends[k].queue);
		}
	free(c->items);
	*c = CONNECTIONS_EMPTY;
}

bool connections_may_be_repaired(void)
{
	return geteuid() == 0 ||
	       prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, CAP_NET_ADMIN, 0, 0) == 1;
}

static socklen_t address_bytes(const union connection_address *a)
{
	return a->any.sa_family == AF_INET ? sizeof(a->v4) : sizeof(a->v6);
}

/* ---- looking ---- */

struct seen_end {
	struct connection_end end;
	union connection_address peer;
	enum state state;
	bool is_taken;
};

struct look {
	struct seen_end *ends;
	size_t n;
	in_port_t *listening;
	size_t n_listening;
	uint64_t cookie; /* of our network namespace */
	struct brumate_error *err;
};

static int option_of(int fd, int level, int name)
{
	socklen_t len = sizeof(int);
	int value = 0;

	return getsockopt(fd, level, name, &value, &len) < 0 ? -1 : value;
}

static void set_flag(int fd, int level, int name, int value)
{
	setsockopt(fd, level, name, &value, sizeof(value));
}

static uint64_t namespace_of(int fd)
{
	socklen_t len = sizeof(uint64_t);
	uint64_t cookie = 0;

	return getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &len) < 0 ? 0 : cookie;
}

static int tcp_info_of(int fd, struct tcp_info *ret)
{
	socklen_t len = sizeof(*ret);

	*ret = (struct tcp_info){ 0 };
	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, ret, &len) < 0 ? -errno : 0;
}

static bool connection_has_ended(int fd)
{
	union connection_address peer;
	/* The kernel fills no more than its address has. */
	socklen_t len =
		option_of(fd, SOL_SOCKET, SO_DOMAIN) == AF_INET ? sizeof(peer.v4) : sizeof(peer.v6);
	struct tcp_info tcp;

	return option_of(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP &&
	       tcp_info_of(fd, &tcp) == 0 && tcp.tcpi_state == CLOSED &&
	       getsockopt(fd, SOL_SOCKET, SO_PEERNAME, &peer, &len) == 0;
}

static in_port_t port_of(const union connection_address *a)
{
	return a->any.sa_family == AF_INET ? a->v4.sin_port : a->v6.sin6_port;
}

static struct in6_addr mapped(const union connection_address *a)
{
	struct in6_addr v6 = { 0 };

	if (a->any.sa_family == AF_INET6)
		return a->v6.sin6_addr;
	v6.s6_addr[10] = v6.s6_addr[11] = 0xff;
	memcpy(&v6.s6_addr[12], &a->v4.sin_addr, 4);
	return v6;
}

static bool is_same(const union connection_address *a, const union connection_address *b)
{
	const struct in6_addr a6 = mapped(a), b6 = mapped(b);

	return port_of(a) == port_of(b) && !memcmp(&a6, &b6, sizeof(a6));
}

static int refuse(const struct connection_end *e, int code, const char *what,
		  struct brumate_error *err)
{
	brumate_fail(err, code, "process %d (%s) has a TCP connection (fd %d) %s", e->pid, e->comm,
		     e->number, what);
	brumate_hint(err, "%s",
		     code == EAGAIN ? "try again"
				    : "close it before the checkpoint, or let root make the "
				      "checkpoint; suspend and resume work");
	return -code;
}

/* What a new end would not have. NULL: nothing. @our_namespace 0: not known. */
static const char *find_peculiar(int fd, uint64_t our_namespace)
{
	char name[64] = "", byte;
	socklen_t len = sizeof(name), n_filter = 0;

	if (our_namespace && namespace_of(fd) != our_namespace)
		return "of another network namespace";
	if (getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, NULL, &n_filter) == 0 && n_filter)
		return "with a filter";
	if (getsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, name, &len) == 0 && len && *name)
		return "that is bound to a network device";
	len = sizeof(name);
	if (getsockopt(fd, IPPROTO_TCP, TCP_ULP, name, &len) == 0 && len && *name)
		return "with a protocol of the kernel's above it (as TLS)";
	if (recv(fd, &byte, 1, MSG_OOB | MSG_PEEK | MSG_DONTWAIT) == 1)
		return "with urgent data that was not read";
	return NULL;
}

static uint64_t own_namespace(void)
{
	auto_close int own = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	return own < 0 ? 0 : namespace_of(own);
}

const char *connection_find_obstacle(int fd)
{
	struct tcp_info tcp;

	if (connection_has_ended(fd))
		return "that both ends have closed";
	if (option_of(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP || tcp_info_of(fd, &tcp) < 0 ||
	    tcp.tcpi_state == CLOSED || tcp.tcpi_state == LISTENING)
		return NULL;
	return find_peculiar(fd, own_namespace());
}

static int look_at(void *arg, const struct proc_info *info, int number, int fd)
{
	struct seen_end s = { .end = { .fd = -1, .pid = info->id.pid, .number = number } };
	union connection_address *local = &s.end.address;
	struct look *l = arg;
	struct tcp_info tcp;
	struct stat st;
	socklen_t len = sizeof(*local);

	if (option_of(fd, SOL_SOCKET, SO_PROTOCOL) != IPPROTO_TCP ||
	    option_of(fd, SOL_SOCKET, SO_TYPE) != SOCK_STREAM || tcp_info_of(fd, &tcp) < 0 ||
	    (tcp.tcpi_state == CLOSED && !connection_has_ended(fd)) ||
	    getsockname(fd, &local->any, &len) < 0)
		return 0;
	if (tcp.tcpi_state == LISTENING)
		return array_add(l->listening, l->n_listening, port_of(local));
	snprintf(s.end.comm, sizeof(s.end.comm), "%s", info->comm);
	s.state = tcp.tcpi_state;
	if (s.state == CLOSED)
		return refuse(&s.end, EOPNOTSUPP, "that both ends have closed", l->err);
	len = sizeof(s.peer);
	if (getpeername(fd, &s.peer.any, &len) < 0 || fstat(fd, &st) < 0)
		return refuse(&s.end, EAGAIN, "that is not there yet, or no more", l->err);
	const char *peculiar = find_peculiar(fd, l->cookie);
	if (peculiar)
		return refuse(&s.end, EOPNOTSUPP, peculiar, l->err);
	s.end.inode = st.st_ino;
	s.end.flags = fcntl(fd, F_GETFL) & O_NONBLOCK;
	const int locks = option_of(fd, SOL_SOCKET, SO_BUF_LOCK);
	if (locks > 0 && locks & LOCK_SEND)
		s.end.send_bytes = option_of(fd, SOL_SOCKET, SO_SNDBUF);
	if (locks > 0 && locks & LOCK_RECEIVE)
		s.end.receive_bytes = option_of(fd, SOL_SOCKET, SO_RCVBUF);
	s.end.fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	if (s.end.fd < 0)
		return -errno;
	int r = array_add(l->ends, l->n, s);
	if (r < 0)
		close(s.end.fd);
	return r;
}

static struct seen_end *find_other(struct look *l, const struct seen_end *s)
{
	for (size_t i = 0; i < l->n; i++) {
		struct seen_end *o = &l->ends[i];

		if (o != s && !o->is_taken && is_same(&o->end.address, &s->peer) &&
		    is_same(&o->peer, &s->end.address))
			return o;
	}
	return NULL;
}

/* All that @from has sent is with @to, which counts the end as a byte. Acknowledgements may come later. */
static bool has_arrived(const struct tcp_info *from, const struct tcp_info *to)
{
	return !from->tcpi_notsent_bytes &&
	       from->tcpi_bytes_sent - from->tcpi_bytes_retrans ==
		       to->tcpi_bytes_received - (to->tcpi_state == CLOSE_WAIT);
}

static bool has_shut(const struct tcp_info *t)
{
	return t->tcpi_state == FIN_WAIT1 || t->tcpi_state == FIN_WAIT2;
}

/* Where the other end has closed, it makes no difference whether this one receives. */
static unsigned shut_of(int fd, const struct tcp_info *t)
{
	struct pollfd p = { .fd = fd, .events = POLLRDHUP };
	const bool receives_no_more =
		t->tcpi_state != CLOSE_WAIT && poll(&p, 1, 0) > 0 && p.revents & POLLRDHUP;

	return (has_shut(t) ? CONNECTION_SENDS_NO_MORE : 0u) |
	       (receives_no_more ? CONNECTION_RECEIVES_NO_MORE : 0u);
}

static bool is_settled(const struct tcp_info *a, const struct tcp_info *b)
{
	const bool is_open = a->tcpi_state == ESTABLISHED && b->tcpi_state == ESTABLISHED;
	const bool is_half = (has_shut(a) && b->tcpi_state == CLOSE_WAIT) ||
			     (has_shut(b) && a->tcpi_state == CLOSE_WAIT);

	return (is_open || is_half) && has_arrived(a, b) && has_arrived(b, a);
}

/* Looks at the queue from its beginning. SO_PEEK_OFF says where that is otherwise, and moves. */
static ssize_t peek(int fd, void *bytes, size_t n)
{
	const int offset = option_of(fd, SOL_SOCKET, SO_PEEK_OFF), zero = 0;

	if (offset >= 0)
		setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &zero, sizeof(zero));
	ssize_t got = recv(fd, bytes, n, MSG_PEEK | MSG_DONTWAIT);
	if (offset >= 0)
		setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &offset, sizeof(offset));
	return got;
}

/* Lets in what the sender has kept back: to wait for much, the kernel makes the buffer as large as net.ipv4.tcp_rmem allows, from which
 * net.core.rmem_max does not keep a user, and announces the window when the queue is looked at. The buffer stays larger, and the
 * kernel's to change where it was. */
static void make_room(const struct connection_end *e)
{
	const int locks = option_of(e->fd, SOL_SOCKET, SO_BUF_LOCK), most = INT_MAX / 4;
	const int least = option_of(e->fd, SOL_SOCKET, SO_RCVLOWAT);
	char byte;

	if (locks > 0)
		set_flag(e->fd, SOL_SOCKET, SO_BUF_LOCK, locks & ~LOCK_RECEIVE);
	set_flag(e->fd, SOL_SOCKET, SO_RCVLOWAT, most);
	set_flag(e->fd, SOL_SOCKET, SO_RCVLOWAT, least);
	set_flag(e->fd, IPPROTO_TCP, TCP_WINDOW_CLAMP, most);
	if (locks > 0)
		set_flag(e->fd, SOL_SOCKET, SO_BUF_LOCK, locks);
	peek(e->fd, &byte, 1);
}

/* A buffer of a fixed size is that again. What is in it stays. */
static void fix_size(const struct connection_end *e)
{
	if (e->receive_bytes) /* the kernel takes half of what it tells */
		set_flag(e->fd, SOL_SOCKET, SO_RCVBUF, e->receive_bytes / 2);
}

static int settle(struct connection_pair *c, struct brumate_error *err)
{
	const uint64_t deadline_ns = deadline_in_ms(SETTLE_MS);
	struct tcp_info a, b;

	for (;;) {
		int r = tcp_info_of(c->ends[0].fd, &a);

		if (r == 0)
			r = tcp_info_of(c->ends[1].fd, &b);
		if (r < 0)
			return refuse(&c->ends[0], -r, "that cannot be looked at", err);
		if (is_settled(&a, &b))
			break;
		if (!deadline_left_ms(deadline_ns)) {
			fix_size(&c->ends[0]);
			fix_size(&c->ends[1]);
			return refuse(&c->ends[has_arrived(&a, &b) ? 1 : 0], EAGAIN,
				      "by which more is under way than the other end has room for",
				      err);
		}
		if (!has_arrived(&a, &b))
			make_room(&c->ends[1]);
		if (!has_arrived(&b, &a))
			make_room(&c->ends[0]);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	fix_size(&c->ends[0]);
	fix_size(&c->ends[1]);
	c->ends[0].shut = shut_of(c->ends[0].fd, &a);
	c->ends[1].shut = shut_of(c->ends[1].fd, &b);
	return 0;
}

static int read_queue(struct connection_end *e, struct brumate_error *err)
{
	int n = 0;

	if (ioctl(e->fd, SIOCINQ, &n) < 0)
		return refuse(e, errno, "whose queue is not told", err);
	if (!n)
		return 0;
	e->queue = malloc((size_t)n);
	if (!e->queue)
		return brumate_fail(err, ENOMEM, "%m");
	if (peek(e->fd, e->queue, (size_t)n) != n)
		return refuse(e, EOPNOTSUPP, "whose received data cannot be read", err);
	e->queue_bytes = (size_t)n;
	return 0;
}

static bool listens(const struct look *l, in_port_t port)
{
	for (size_t i = 0; i < l->n_listening; i++)
		if (l->listening[i] == port)
			return true;
	return false;
}

static int add_pair(struct connections *c, struct look *l, struct seen_end *s, struct seen_end *o)
{
	const bool swaps = listens(l, port_of(&o->end.address));
	struct connection_pair pair = {
		.ends = { swaps ? o->end : s->end, swaps ? s->end : o->end }, .elsewhere = -1
	};
	int r = array_add(c->items, c->n, pair);

	if (r == 0) {
		s->is_taken = o->is_taken = true;
		s->end.fd = o->end.fd = -1;
	}
	return r;
}

static int compare_addresses(const union connection_address *a, const union connection_address *b)
{
	const struct in6_addr a6 = mapped(a), b6 = mapped(b);
	int r = memcmp(&a6, &b6, sizeof(a6));

	return r ? r : ntohs(port_of(a)) - ntohs(port_of(b));
}

/* Whose end the other one is finds the same order by itself. */
static int add_half(struct connections *c, struct seen_end *s)
{
	const bool swaps = compare_addresses(&s->end.address, &s->peer) > 0;
	const struct connection_end other = { .fd = -1, .address = s->peer };
	struct connection_pair pair = { .ends = { swaps ? other : s->end, swaps ? s->end : other },
					.elsewhere = swaps ? 0 : 1 };
	int r = array_add(c->items, c->n, pair);

	if (r == 0) {
		s->is_taken = true;
		s->end.fd = -1;
	}
	return r;
}

static int pair_all(struct connections *c, struct look *l, const struct connection_others *others,
		    struct brumate_error *err)
{
	int r = 0;

	for (size_t i = 0; i < l->n && r == 0; i++) {
		struct seen_end *s = &l->ends[i], *o = s->is_taken ? NULL : find_other(l, s);

		if (s->is_taken)
			continue;
		r = o ? add_pair(c, l, s, o)
		    : others && s->state == ESTABLISHED
			    ? add_half(c, s)
			    : refuse(&s->end, EOPNOTSUPP,
				     "whose other end is not of the job, or has been closed; that "
				     "takes CAP_NET_ADMIN to save",
				     err);
	}
	return r;
}

static struct connection_end *own_end(struct connection_pair *c)
{
	return &c->ends[c->elsewhere == 0];
}

/* What another tree has not received yet is still in our queue. 1: there is some. */
static int offer_room(struct connections *c, const struct connection_end **ret_late,
		      struct brumate_error *err)
{
	*ret_late = NULL;
	for (size_t i = 0; i < c->n; i++) {
		const struct connection_end *e = own_end(&c->items[i]);
		int n = 0;

		if (c->items[i].elsewhere < 0)
			continue;
		make_room(e);
		if (ioctl(e->fd, SIOCOUTQ, &n) < 0)
			return refuse(e, errno, "whose queue is not told", err);
		if (n)
			*ret_late = e;
	}
	return *ret_late ? 1 : 0;
}

/* Nobody tells how much the others have yet to send, so they are offered room for a while. */
static int settle_with_others(struct connections *c, const struct connection_others *others,
			      struct brumate_error *err)
{
	const uint64_t deadline_ns = deadline_in_ms(SETTLE_MS);
	const struct connection_end *late;
	int r;

	while ((r = offer_room(c, &late, err)) == 1 ||
	       (r == 0 && deadline_left_ms(deadline_ns) > SETTLE_MS - OFFER_MS)) {
		if (!deadline_left_ms(deadline_ns))
			return refuse(late, EAGAIN,
				      "by which more is under way than the other end has room for",
				      err);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	for (size_t i = 0; i < c->n; i++)
		if (c->items[i].elsewhere >= 0)
			fix_size(own_end(&c->items[i]));
	return r < 0 ? r : others->drained(others->arg, err);
}

static int settle_all(struct connections *c, const struct connection_others *others,
		      struct brumate_error *err)
{
	int r = others ? settle_with_others(c, others, err) : 0;

	for (size_t i = 0; i < c->n && r == 0; i++)
		if (c->items[i].elsewhere < 0)
			r = settle(&c->items[i], err);
	return r;
}

static void look_fini(struct look *l)
{
	for (size_t i = 0; i < l->n; i++)
		cleanup_close(&l->ends[i].end.fd);
	free(l->ends);
	free(l->listening);
}

static bool has_long_queue(const struct connection_pair *c)
{
	return c->ends[0].queue_bytes > SMALL_BYTES || c->ends[1].queue_bytes > SMALL_BYTES;
}

static int make_here(struct connection_pair *c, bool is_apart, struct brumate_error *err);

/* Whether a new connection has room for the queues: it is tried. */
static int check_room(const struct connection_pair *c, struct brumate_error *err)
{
	struct connection_pair trial = *c;

	if (!has_long_queue(c))
		return 0;
	trial.ends[0].fd = trial.ends[1].fd = -1;
	int r = make_here(&trial, true, err);
	for (int k = 0; k < 2; k++)
		cleanup_close(&trial.ends[k].fd);
	return r;
}

/* The end of another tree has none that is known here. */
static int read_queues(struct connection_pair *c, struct brumate_error *err)
{
	int r = 0;

	for (int k = 0; k < 2 && r == 0; k++)
		r = k == c->elsewhere ? 0 : read_queue(&c->ends[k], err);
	return r;
}

int connections_read(struct connections *ret, const struct proc_tree *tree,
		     const struct connection_others *others, struct brumate_error *err)
{
	auto_(connections_fini) struct connections c = CONNECTIONS_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	struct look l = { .cookie = own_namespace(), .err = &why };
	int r = sockets_each(tree, look_at, &l);

	if (r == 0)
		r = pair_all(&c, &l, others, &why);
	look_fini(&l);
	if (r == 0)
		r = settle_all(&c, others, &why);
	for (size_t i = 0; i < c.n && r == 0; i++)
		if ((r = read_queues(&c.items[i], &why)) == 0)
			r = check_room(&c.items[i], &why);
	if (r == 0)
		*ret = take_struct(c, CONNECTIONS_EMPTY);
	else if (!why.code)
		brumate_fail(&why, -r, "connections of the job: %s", strerror(-r));
	if (r < 0 && err)
		*err = why;
	return r;
}

/* ---- as bytes ---- */

static void print_end(FILE *f, const struct connection_end *e)
{
	char text[INET6_ADDRSTRLEN] = "";
	const bool is_v4 = e->address.any.sa_family == AF_INET;

	inet_ntop(e->address.any.sa_family,
		  is_v4 ? (const void *)&e->address.v4.sin_addr : &e->address.v6.sin6_addr, text,
		  sizeof(text));
	fprintf(f, "%u %s %u %u %d %u %d %d %zu\n", e->file, text, ntohs(port_of(&e->address)),
		is_v4 ? 0 : e->address.v6.sin6_scope_id, e->flags & O_NONBLOCK ? 1 : 0, e->shut,
		e->send_bytes, e->receive_bytes, e->queue_bytes);
}

char *connections_encode(const struct connections *c, size_t *ret_len_bytes)
{
	char *bytes = NULL;
	FILE *f = open_memstream(&bytes, ret_len_bytes);

	if (!f)
		return NULL;
	fputs(HEADING, f);
	for (size_t i = 0; i < 2 * c->n; i++)
		print_end(f, &c->items[i / 2].ends[i % 2]);
	fputs("\n", f);
	for (size_t i = 0; i < 2 * c->n; i++) {
		const struct connection_end *e = &c->items[i / 2].ends[i % 2];

		if (e->queue_bytes)
			fwrite(e->queue, 1, e->queue_bytes, f);
	}
	if (fclose(f) == 0)
		return bytes;
	free(bytes);
	return NULL;
}

static bool decode_end(struct connection_end *ret, const char *line)
{
	unsigned port, scope, is_nonblocking, shut;
	char text[INET6_ADDRSTRLEN];
	int end = -1;

	*ret = (struct connection_end){ .fd = -1 };
	if (sscanf(line, "%u %45s %u %u %u %u %d %d %zu%n", &ret->file, text, &port, &scope,
		   &is_nonblocking, &shut, &ret->send_bytes, &ret->receive_bytes, &ret->queue_bytes,
		   &end) != 9 ||
	    line[end] || !port || port > UINT16_MAX || is_nonblocking > 1 || shut > 3 ||
	    ret->send_bytes < 0 || ret->receive_bytes < 0 ||
	    ret->queue_bytes > CONNECTIONS_BYTES_MAX)
		return false;
	ret->flags = is_nonblocking ? O_NONBLOCK : 0;
	ret->shut = shut;
	if (inet_pton(AF_INET, text, &ret->address.v4.sin_addr) == 1) {
		ret->address.v4.sin_family = AF_INET;
		ret->address.v4.sin_port = htons((uint16_t)port);
		return true;
	}
	ret->address.v6 = (struct sockaddr_in6){ .sin6_family = AF_INET6,
						 .sin6_port = htons((uint16_t)port),
						 .sin6_scope_id = scope };
	return inet_pton(AF_INET6, text, &ret->address.v6.sin6_addr) == 1;
}

/* Reads a line up to @end into @ret without its newline; the next one begins at what is returned, NULL: there is none. */
static const char *next_line(char *ret, size_t ret_bytes, const char *p, const char *end)
{
	const char *newline = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;

	if (!newline || (size_t)(newline - p) >= ret_bytes || memchr(p, 0, (size_t)(newline - p)))
		return NULL;
	memcpy(ret, p, (size_t)(newline - p));
	ret[newline - p] = '\0';
	return newline + 1;
}

static int take_queue(struct connection_end *e, const char **p, const char *end)
{
	const size_t n = e->queue_bytes;

	e->queue_bytes = 0;
	if (n > (size_t)(end - *p))
		return -EBADMSG;
	e->queue = malloc(n + 1);
	if (!e->queue)
		return -ENOMEM;
	memcpy(e->queue, *p, n);
	e->queue_bytes = n;
	*p += n;
	return 0;
}

/* Of which nothing but the address is known. */
static bool find_elsewhere(struct connection_pair *c)
{
	for (int k = 0; k < 2; k++) {
		const struct connection_end *e = &c->ends[k];

		if (e->file)
			continue;
		if (c->elsewhere >= 0 || e->flags || e->shut || e->send_bytes || e->receive_bytes ||
		    e->queue_bytes)
			return false;
		c->elsewhere = k;
	}
	return true;
}

int connections_decode(struct connections *ret, const char *bytes, size_t len_bytes)
{
	auto_(connections_fini) struct connections c = CONNECTIONS_EMPTY;
	const char *end = bytes + len_bytes, *p;
	char line[160];
	int r = 0;

	if (len_bytes < strlen(HEADING) || memcmp(bytes, HEADING, strlen(HEADING)) != 0)
		return -EBADMSG;
	for (p = bytes + strlen(HEADING); (p = next_line(line, sizeof(line), p, end)) && *line;) {
		struct connection_pair pair = { .elsewhere = -1 };

		if (c.n == CONNECTIONS_MAX || !decode_end(&pair.ends[0], line) ||
		    !(p = next_line(line, sizeof(line), p, end)) ||
		    !decode_end(&pair.ends[1], line) || !find_elsewhere(&pair))
			return -EBADMSG;
		if ((r = array_add(c.items, c.n, pair)) < 0)
			return r;
	}
	if (!p)
		return -EBADMSG;
	for (size_t i = 0; i < 2 * c.n && r == 0; i++)
		r = take_queue(&c.items[i / 2].ends[i % 2], &p, end);
	if (r < 0 || p != end)
		return r < 0 ? r : -EBADMSG;
	*ret = take_struct(c, CONNECTIONS_EMPTY);
	return 0;
}

/* ---- making ---- */

static void set_linger(int fd, bool on)
{
	const struct linger now = { .l_onoff = on };

	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

void connection_abort(int fd)
{
	set_linger(fd, true);
}

void connection_keep(int fd)
{
	set_linger(fd, false);
}

static int fail_make(const struct connection_end *e, const char *what, int code,
		     struct brumate_error *err)
{
	char text[INET6_ADDRSTRLEN] = "";
	const bool is_v4 = e->address.any.sa_family == AF_INET;

	inet_ntop(e->address.any.sa_family,
		  is_v4 ? (const void *)&e->address.v4.sin_addr : &e->address.v6.sin6_addr, text,
		  sizeof(text));
	brumate_fail(err, code, "a TCP connection of the job, at %s port %u, cannot be %s: %s",
		     text, ntohs(port_of(&e->address)), what, strerror(code));
	brumate_hint(err, "%s",
		     code == EADDRINUSE	     ? "end what uses the port, or try again in a minute"
		     : code == EADDRNOTAVAIL ? "restore it on a machine with that address"
					     : "try again");
	return -code;
}

/* The address that stands in for one in a place apart. */
static union connection_address any_address(const union connection_address *a)
{
	union connection_address any = { .v4 = { .sin_family = AF_INET,
						 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) } };

	if (a->any.sa_family == AF_INET)
		return any;
	return (union connection_address){ .v6 = { .sin6_family = AF_INET6,
						   .sin6_addr = mapped(&any) } };
}

/* Returns a socket that may be bound to @at, or -errno. */
static int new_socket(const struct connection_end *e, const union connection_address *at)
{
	auto_close int fd =
		socket(at->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	connection_abort(fd);
	set_flag(fd, SOL_SOCKET, SO_REUSEADDR, 1);
	if (at->any.sa_family == AF_INET6)
		set_flag(fd, IPPROTO_IPV6, IPV6_V6ONLY, !IN6_IS_ADDR_V4MAPPED(&at->v6.sin6_addr));
	/* The kernel takes half of what it tells. */
	if (e->send_bytes)
		set_flag(fd, SOL_SOCKET, SO_SNDBUF, e->send_bytes / 2);
	if (e->receive_bytes)
		set_flag(fd, SOL_SOCKET, SO_RCVBUF, e->receive_bytes / 2);
	return take_fd(&fd);
}

static int bind_socket(const struct connection_end *e, const union connection_address *at)
{
	auto_close int fd = new_socket(e, at);

	return fd < 0 ? fd : bind(fd, &at->any, address_bytes(at)) < 0 ? -errno : take_fd(&fd);
}

/* The same address, as a socket of the family of @like names it. */
static union connection_address as_family(const union connection_address *a,
					  const union connection_address *like)
{
	union connection_address as = { .v4 = { .sin_family = AF_INET, .sin_port = port_of(a) } };
	const struct in6_addr v6 = mapped(a);

	if (a->any.sa_family == like->any.sa_family)
		return *a;
	if (like->any.sa_family == AF_INET)
		memcpy(&as.v4.sin_addr, &v6.s6_addr[12], 4);
	else
		as = (union connection_address){
			.v6 = { .sin6_family = AF_INET6, .sin6_port = port_of(a), .sin6_addr = v6 }
		};
	return as;
}

static int await(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd p = { .fd = fd, .events = events };
	int n;

	do
		n = poll(&p, 1, deadline_left_ms(deadline_ns));
	while (n < 0 && errno == EINTR);
	return n > 0 ? 0 : n < 0 ? -errno : -ETIMEDOUT;
}

/* Accepts the connection from @from; another that comes to the address meanwhile is closed. */
static int accept_from(int listener, int from, uint64_t deadline_ns)
{
	union connection_address wanted, got;
	socklen_t len = sizeof(wanted);

	if (getsockname(from, &wanted.any, &len) < 0)
		return -errno;
	for (;;) {
		int r = await(listener, POLLIN, deadline_ns);

		if (r < 0)
			return r;
		len = sizeof(got);
		auto_close int fd = accept4(listener, &got.any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0 && is_same(&got, &wanted))
			return take_fd(&fd);
	}
}

static int connect_to(int fd, const union connection_address *to, uint64_t deadline_ns)
{
	if (connect(fd, &to->any, address_bytes(to)) < 0) {
		int r = errno != EINPROGRESS ? -errno : await(fd, POLLOUT, deadline_ns);

		if (r < 0)
			return r;
	}
	return -option_of(fd, SOL_SOCKET, SO_ERROR);
}

/*
 * A port at which a connection has ended cannot be bound for a minute. But the kernel takes it by itself for a new connection that
 * was not bound, after a second, if it is within the machine (tcp(7)): so it is asked to choose between this port and none.
 */
static int connect_unbound(struct connection_end *client, const union connection_address *from,
			   const union connection_address *to, uint64_t deadline_ns)
{
	union connection_address any = *from, got;
	const uint32_t port = ntohs(port_of(from)), range = port << 16 | port;
	socklen_t len = sizeof(got);
	auto_close int fd = port ? new_socket(client, from) : -EADDRNOTAVAIL;

	if (fd < 0)
		return fd;
	if (any.any.sa_family == AF_INET)
		any.v4.sin_port = 0;
	else
		any.v6.sin6_port = 0;
	if (setsockopt(fd, IPPROTO_IP, LOCAL_PORT_RANGE, &range, sizeof(range)) < 0)
		return -EADDRNOTAVAIL; /* before Linux 6.3 */
	set_flag(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
	if (bind(fd, &any.any, address_bytes(&any)) < 0)
		return -errno;
	int r = connect_to(fd, to, deadline_ns);
	if (r < 0)
		return r;
	/* Outside of the ports that the machine gives away the range does not count. */
	if (getsockname(fd, &got.any, &len) < 0 || !is_same(&got, from))
		return -EADDRNOTAVAIL;
	set_flag(fd, IPPROTO_IP, LOCAL_PORT_RANGE, 0);
	set_flag(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 0);
	client->fd = take_fd(&fd);
	return 0;
}

static int connect_bound(struct connection_end *client, const union connection_address *from,
			 const union connection_address *to, uint64_t deadline_ns)
{
	auto_close int fd = bind_socket(client, from);
	int r = fd < 0 ? fd : connect_to(fd, to, deadline_ns);

	if (r == 0)
		client->fd = take_fd(&fd);
	return r;
}

static void close_pair(struct connection_pair *c)
{
	for (int k = 0; k < 2; k++) {
		cleanup_close(&c->ends[k].fd);
		c->ends[k].fd = -1;
	}
}

/* Connects one end to the other. */
static int join_to(struct connection_end *server, struct connection_end *client, bool is_apart,
		   struct brumate_error *err)
{
	const uint64_t deadline_ns = deadline_in_ms(MAKE_TIMEOUT_MS);
	union connection_address at = is_apart ? any_address(&server->address) : server->address;
	const union connection_address from =
		is_apart ? any_address(&client->address) : client->address;
	socklen_t len = sizeof(at);

	auto_close int listener = bind_socket(server, &at);
	if (listener < 0)
		return fail_make(server, "made anew", -listener, err);
	if (listen(listener, 8) < 0 || getsockname(listener, &at.any, &len) < 0)
		return fail_make(server, "made anew", errno, err);
	at = as_family(&at, &from);
	int r = connect_unbound(client, &from, &at, deadline_ns);
	if (r < 0)
		r = connect_bound(client, &from, &at, deadline_ns);
	if (r < 0)
		return fail_make(client, "made anew", -r, err);
	r = server->fd = accept_from(listener, client->fd, deadline_ns);
	connection_abort(server->fd);
	return r < 0 ? fail_make(server, "made anew", -r, err) : 0;
}

static bool is_of_address(int r)
{
	return r == -EADDRINUSE || r == -EADDRNOTAVAIL;
}

/* Either end may be the one that is bound, and the other the one that finds its port free. */
static int join(struct connection_pair *c, bool is_apart, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = join_to(&c->ends[0], &c->ends[1], is_apart, err);

	if (!is_of_address(r))
		return r;
	close_pair(c);
	if (join_to(&c->ends[1], &c->ends[0], is_apart, &why) < 0)
		return r;
	if (err)
		*err = BRUMATE_ERROR_NONE;
	return 0;
}

static bool has_received(const struct connection_end *e)
{
	int n = 0;

	return ioctl(e->fd, SIOCINQ, &n) == 0 && (size_t)n == e->queue_bytes;
}

/* What the sender's buffer has no room for waits until the receiver has taken what is there. */
static int send_queue(struct connection_end *to, const struct connection_end *from,
		      struct brumate_error *err)
{
	const uint64_t deadline_ns = deadline_in_ms(MAKE_TIMEOUT_MS);
	size_t sent = 0;

	while (sent < to->queue_bytes || !has_received(to)) {
		ssize_t n = send(from->fd, to->queue + sent, to->queue_bytes - sent,
				 MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n < 0 && (errno != EAGAIN || !deadline_left_ms(deadline_ns)))
			return fail_make(to, "filled: its queue has no room", errno, err);
		sent += n > 0 ? (size_t)n : 0;
		if (sent == to->queue_bytes && !deadline_left_ms(deadline_ns))
			return fail_make(to, "filled: its queue has no room", EAGAIN, err);
		if (has_received(to))
			continue;
		make_room(to);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
	fix_size(to);
	return 0;
}

static int make_here(struct connection_pair *c, bool is_apart, struct brumate_error *err)
{
	int r = join(c, is_apart, err);

	if (r == 0)
		r = send_queue(&c->ends[0], &c->ends[1], err);
	if (r == 0)
		r = send_queue(&c->ends[1], &c->ends[0], err);
	return r;
}

/* ---- making, with somebody who makes the other end ---- */

/* Waits for @events of @fd. -ECANCELED: the others are not waited for any more; -EAGAIN: not yet. */
static int await_others(int fd, short events, const struct connection_others *others,
			uint64_t deadline_ns)
{
	struct pollfd p[] = { { .fd = fd, .events = events },
			      { .fd = others->fd, .events = POLLIN } };
	const int left_ms = deadline_left_ms(deadline_ns);

	if (!left_ms)
		return -ETIMEDOUT;
	int n = poll(p, 2, left_ms < TRY_MS ? left_ms : TRY_MS);
	if (n > 0 && p[1].revents)
		return -ECANCELED;
	return n > 0 ? 0 : -EAGAIN;
}

static int accept_other(const struct connection_end *own, const struct connection_end *other,
			const struct connection_others *others, uint64_t deadline_ns)
{
	auto_close int listener = bind_socket(own, &own->address);

	if (listener < 0)
		return listener;
	if (listen(listener, 8) < 0)
		return -errno;
	for (;;) {
		union connection_address got;
		socklen_t len = sizeof(got);
		int r = await_others(listener, POLLIN, others, deadline_ns);

		if (r == -EAGAIN)
			continue;
		if (r < 0)
			return r;
		auto_close int fd = accept4(listener, &got.any, &len, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0 && is_same(&got, &other->address))
			return take_fd(&fd);
	}
}

/* The other end may not listen yet. */
static int connect_other(const struct connection_end *own, const struct connection_end *other,
			 const struct connection_others *others, uint64_t deadline_ns)
{
	const union connection_address to = as_family(&other->address, &own->address);

	for (;;) {
		auto_close int fd = bind_socket(own, &own->address);
		int r = fd < 0 ? fd : 0;

		if (r == 0 && connect(fd, &to.any, address_bytes(&to)) < 0)
			r = errno == EAGAIN ? -EADDRNOTAVAIL : -errno;
		while (r == -EINPROGRESS || r == -EAGAIN)
			r = await_others(fd, POLLOUT, others, deadline_ns);
		if (r == 0 && (r = -option_of(fd, SOL_SOCKET, SO_ERROR)) == 0)
			return take_fd(&fd);
		if (r != -ECONNREFUSED && r != -ECONNRESET)
			return r;
		if ((r = await_others(-1, 0, others, deadline_ns)) != -EAGAIN)
			return r;
	}
}

struct sending {
	const uint8_t *bytes;
	size_t n;
};

/* Sends and receives as much as goes at once; @want 0: nothing is received. <0: -errno. */
static int exchange_some(int fd, struct sending *out, uint8_t *in, size_t *have, size_t want)
{
	ssize_t n = out->n ? send(fd, out->bytes, out->n, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;

	if (n < 0 && errno != EAGAIN)
		return -errno;
	out->bytes += n > 0 ? n : 0;
	out->n -= n > 0 ? (size_t)n : 0;
	n = *have < want ? recv(fd, in + *have, want - *have, MSG_DONTWAIT) : 1;
	if (n == 0)
		return -ECONNRESET;
	if (n < 0 && errno != EAGAIN)
		return -errno;
	*have += *have < want && n > 0 ? (size_t)n : 0;
	return 0;
}

/* Sends @out and receives @want bytes. */
static int exchange(int fd, struct sending out, uint8_t *in, size_t want,
		    const struct connection_others *others, uint64_t deadline_ns)
{
	size_t have = 0;
	int r;

	while ((r = exchange_some(fd, &out, in, &have, want)) == 0 && (out.n || have < want)) {
		const short events = (short)((out.n ? POLLOUT : 0) | (have < want ? POLLIN : 0));

		r = await_others(fd, events, others, deadline_ns);
		if (r < 0 && r != -EAGAIN)
			break;
	}
	return r;
}

/* What an end of a connection shows to prove that it knows the secret; the roles differ, so that none is shown its own. */
struct proof {
	char role; /* 'a': it has accepted; 'c': it has connected */
	uint8_t own[CHALLENGE_BYTES], theirs[CHALLENGE_BYTES];
};

static int make_proof(struct digest *ret, const char *secret, const struct proof *p)
{
	struct chunk_key key;
	struct digest of_secret;
	int r = chunk_digest(&of_secret, secret, strlen(secret));

	if (r < 0)
		return r;
	_Static_assert(sizeof(key.bytes) == sizeof(of_secret.bytes), "a digest is a key");
	memcpy(key.bytes, of_secret.bytes, sizeof(key.bytes));
	return chunk_digest_keyed(ret, &key, p, sizeof(*p));
}

/* Anybody on the node may have taken the port of the other end meanwhile. -EACCES: it is not the other member. */
static int prove(int fd, bool accepts, const struct connection_others *others, uint64_t deadline_ns)
{
	struct proof ours = { .role = accepts ? 'a' : 'c' },
		     expected = { .role = accepts ? 'c' : 'a' };
	struct digest shown, seen, wanted;

	if (getrandom(ours.own, sizeof(ours.own), 0) != sizeof(ours.own))
		return -errno;
	int r = exchange(fd, (struct sending){ ours.own, sizeof(ours.own) }, ours.theirs,
			 sizeof(ours.theirs), others, deadline_ns);
	memcpy(expected.own, ours.theirs, sizeof(expected.own));
	memcpy(expected.theirs, ours.own, sizeof(expected.theirs));
	if (r == 0 && (r = make_proof(&shown, others->secret, &ours)) == 0)
		r = make_proof(&wanted, others->secret, &expected);
	if (r == 0)
		r = exchange(fd, (struct sending){ shown.bytes, sizeof(shown.bytes) }, seen.bytes,
			     sizeof(seen.bytes), others, deadline_ns);
	return r == 0 && memcmp(&seen, &wanted, sizeof(seen)) != 0 ? -EACCES : r;
}

/* What this end had received and not read is sent to the other one, which sends it back, into our queue. */
static int exchange_queues(struct connection_end *e, const struct connection_others *others,
			   uint64_t deadline_ns)
{
	const uint64_t own = htobe64(e->queue_bytes);
	uint64_t theirs = 0;
	int r = exchange(e->fd, (struct sending){ (const uint8_t *)&own, sizeof(own) },
			 (uint8_t *)&theirs, sizeof(theirs), others, deadline_ns);

	theirs = be64toh(theirs);
	if (r < 0 || theirs > CONNECTIONS_BYTES_MAX)
		return r < 0 ? r : -EBADMSG;
	auto_free uint8_t *queue = malloc(theirs + 1);
	if (!queue)
		return -ENOMEM;
	r = exchange(e->fd, (struct sending){ e->queue, e->queue_bytes }, queue, theirs, others,
		     deadline_ns);
	if (r == 0)
		r = exchange(e->fd, (struct sending){ queue, theirs }, NULL, 0, others,
			     deadline_ns);
	while (r == 0 && !has_received(e)) {
		make_room(e);
		r = await_others(-1, 0, others, deadline_ns);
		r = r == -EAGAIN ? 0 : r;
	}
	fix_size(e);
	return r;
}

static int make_half(struct connection_pair *c, const struct connection_others *others,
		     struct brumate_error *err)
{
	const uint64_t deadline_ns = deadline_in_ms(OTHERS_TIMEOUT_MS);
	struct connection_end *own = own_end(c), *other = &c->ends[c->elsewhere];
	int r = own->fd = c->elsewhere == 1 ? accept_other(own, other, others, deadline_ns)
					    : connect_other(own, other, others, deadline_ns);

	connection_abort(own->fd);
	if (r >= 0)
		r = prove(own->fd, c->elsewhere == 1, others, deadline_ns);
	if (r >= 0)
		r = exchange_queues(own, others, deadline_ns);
	return r < 0 ? fail_make(own, "made anew with the other member", -r, err) : 0;
}

static int make(struct connection_pair *c, bool is_apart, const struct connection_others *others,
		struct brumate_error *err)
{
	const bool is_half = c->elsewhere >= 0 && !is_apart && others;
	int r = is_half ? make_half(c, others, err)
			: make_here(c, is_apart || c->elsewhere >= 0, err);

	for (int k = 0; k < 2 && r == 0; k++) {
		struct connection_end *e = &c->ends[k];

		if (k == c->elsewhere)
			continue;
		if ((e->shut & CONNECTION_SENDS_NO_MORE && shutdown(e->fd, SHUT_WR) < 0) ||
		    (e->shut & CONNECTION_RECEIVES_NO_MORE && shutdown(e->fd, SHUT_RD) < 0) ||
		    fcntl(e->fd, F_SETFL, e->flags) < 0)
			r = fail_make(e, "set up", errno, err);
	}
	return r;
}

/* Those that are made with others come in the same order everywhere, or two would wait for each other. */
static int by_addresses(const void *a, const void *b)
{
	const struct connection_pair *x = a, *y = b;
	int r = (x->elsewhere >= 0) - (y->elsewhere >= 0);

	if (r == 0)
		r = compare_addresses(&x->ends[0].address, &y->ends[0].address);
	return r ? r : compare_addresses(&x->ends[1].address, &y->ends[1].address);
}

/* Whether the kernel remembers a connection that has ended at one of the addresses. */
static bool waits_for_ended(const struct connection_pair *c)
{
	for (int k = 0; k < 2; k++) {
		const union connection_address *a = &c->ends[k].address;
		union port_address at = { .v6 = a->v6 };
		struct port_use use = { 0 };

		if (a->any.sa_family == AF_INET)
			at.v4 = a->v4;
		if (port_look(&use, &at, true, NULL) == 0 && use.n_ended)
			return true;
	}
	return false;
}

int connections_make(struct connections *c, bool is_apart, const struct connection_others *others,
		     connections_wait_fn wait, void *arg, struct brumate_error *err)
{
	const uint64_t deadline_ns = deadline_in_ms(ENDED_MS);
	int r = 0;

	if (c->n)
		qsort(c->items, c->n, sizeof(*c->items), by_addresses);
	for (size_t i = 0; i < c->n && r == 0;) {
		struct connection_pair *pair = &c->items[i];

		r = make(pair, is_apart, others, err);
		if (r == 0)
			i++;
		if (!is_of_address(r) || !wait || !waits_for_ended(pair) ||
		    clock_now_ns() > deadline_ns)
			continue;
		close_pair(pair);
		if (err)
			*err = BRUMATE_ERROR_NONE;
		r = wait(arg, err);
	}
	for (size_t i = 0; i < c->n && r < 0; i++)
		close_pair(&c->items[i]);
	return r;
}
