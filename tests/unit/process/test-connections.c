// SPDX-License-Identifier: MIT
/* TCP connections of a little process, looked at, written down and made anew. */
#include "little.h"
#include "process/connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { N_QUEUED = 200000, N_LESS = 1000 };

static void be_connected(void *arg)
{
	struct sockaddr_in6 at = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int listener = socket(AF_INET6, SOCK_STREAM, 0), fd = socket(AF_INET6, SOCK_STREAM, 0);
	socklen_t len = sizeof(at);

	(void)arg;
	CHECK(bind(listener, (void *)&at, sizeof(at)) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (void *)&at, &len) == 0);
	CHECK(connect(fd, (void *)&at, sizeof(at)) == 0);
	int accepted = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
	CHECK(accepted >= 0);
	for (int i = 0; i < N_QUEUED; i += 1000) {
		char piece[1000];

		memset(piece, 'a' + i / 1000 % 26, sizeof(piece));
		CHECK(send(fd, piece, sizeof(piece), MSG_DONTWAIT) == sizeof(piece));
	}
	CHECK(shutdown(fd, SHUT_WR) == 0);
	little_ready();
	pause();
}

static void read_of(struct connections *ret, const struct little *l)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	CHECK(proc_tree_read(&tree, little_id(l), NULL) == 0);
	CHECK(connections_read(ret, &tree, NULL, NULL) == 0);
}

static void write_down(struct connections *ret, const struct connections *c)
{
	size_t len, len_again;
	auto_free char *bytes = connections_encode(c, &len);

	CHECK(bytes && connections_decode(ret, bytes, len) == 0);
	auto_free char *again = connections_encode(ret, &len_again);
	CHECK(again && len == len_again && !memcmp(bytes, again, len));
	struct connections none = CONNECTIONS_EMPTY;
	for (size_t n = 0; n < len; n += 1 + n / 7)
		CHECK(connections_decode(&none, bytes, n) == -EBADMSG);
}

static void made_anew(void)
{
	auto_(connections_fini) struct connections seen = CONNECTIONS_EMPTY, c = CONNECTIONS_EMPTY;
	struct little l = little_start(be_connected, NULL);

	little_wait_ready(&l);
	read_of(&seen, &l);
	CHECK(seen.n == 1 && seen.items[0].ends[1].shut == CONNECTION_SENDS_NO_MORE &&
	      !seen.items[0].ends[0].shut);
	CHECK(seen.items[0].ends[0].queue_bytes == N_QUEUED);
	for (int k = 0; k < 2; k++)
		seen.items[0].ends[k].file = (uint32_t)k + 7;
	write_down(&c, &seen);
	/* While it lives, its addresses are not free. */
	struct brumate_error err = BRUMATE_ERROR_NONE;
	CHECK(connections_make(&c, false, NULL, NULL, NULL, &err) == -EADDRINUSE &&
	      strstr(err.text, "at ::1 port"));
	for (int k = 0; k < 2; k++)
		connection_abort(seen.items[0].ends[k].fd);
	connections_fini(&seen);
	little_end(&l);

	CHECK(connections_make(&c, false, NULL, NULL, NULL, &err) == 0);
	struct connection_end *server = &c.items[0].ends[0], *client = &c.items[0].ends[1];
	struct sockaddr_in6 at;
	socklen_t len = sizeof(at);
	CHECK(getsockname(server->fd, (void *)&at, &len) == 0 &&
	      !memcmp(&at, &server->address.v6, len));
	CHECK(getpeername(server->fd, (void *)&at, &len) == 0 &&
	      !memcmp(&at, &client->address.v6, len));
	CHECK(fcntl(server->fd, F_GETFL) & O_NONBLOCK &&
	      !(fcntl(client->fd, F_GETFL) & O_NONBLOCK));
	char byte;
	for (int i = 0; i < N_QUEUED; i++)
		CHECK(recv(server->fd, &byte, 1, 0) == 1 && byte == 'a' + i / 1000 % 26);
	CHECK(recv(server->fd, &byte, 1, 0) == 0); /* the other has shut */
	CHECK(send(server->fd, "z", 1, 0) == 1 && recv(client->fd, &byte, 1, 0) == 1 &&
	      byte == 'z');
	for (int k = 0; k < 2; k++)
		connection_abort(c.items[0].ends[k].fd);
}

static void outward(void *arg)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(connect(fd, arg, sizeof(struct sockaddr_in)) == 0);
	little_ready();
	pause();
}

static void of_others(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	auto_close int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct connections c = CONNECTIONS_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	socklen_t len = sizeof(at);

	CHECK(bind(listener, (void *)&at, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (void *)&at, &len) == 0);
	struct little l = little_start(outward, &at);
	little_wait_ready(&l);
	CHECK(proc_tree_read(&tree, little_id(&l), NULL) == 0);
	CHECK(connections_read(&c, &tree, NULL, &err) == -EOPNOTSUPP &&
	      strstr(err.text, "not of the job"));
	little_end(&l);
}

/* ---- two trees, each with an end ---- */

static void send_letters(int fd, int n, char first)
{
	for (int i = 0; i < n; i++) {
		char byte = (char)(first + i / 1000 % 13);

		CHECK(send(fd, &byte, 1, 0) == 1);
	}
}

static void expect_letters(int fd, int n, char first)
{
	char byte;

	for (int i = 0; i < n; i++)
		CHECK(recv(fd, &byte, 1, 0) == 1 && byte == first + i / 1000 % 13);
	CHECK(recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
}

static void accept_and_send(void *arg)
{
	int fd = accept(*(int *)arg, NULL, NULL);

	CHECK(fd >= 0);
	send_letters(fd, N_QUEUED, 'a');
	little_ready();
	pause();
}

static void connect_and_send(void *arg)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	CHECK(connect(fd, arg, sizeof(struct sockaddr_in)) == 0);
	send_letters(fd, N_LESS, 'n');
	little_ready();
	pause();
}

static int nothing_to_wait_for(void *arg, struct brumate_error *err)
{
	(void)err;
	++*(int *)arg;
	return 0;
}

struct half {
	struct little *of;
	struct connections c;
	struct connection_others others;
	int n_drained, r;
	struct brumate_error err;
};

/* Both look at the same time: what the one has not received yet, the other makes room for. */
static void *take_half(void *arg)
{
	struct half *h = arg;
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_(connections_fini) struct connections seen = CONNECTIONS_EMPTY;

	CHECK(proc_tree_read(&tree, little_id(h->of), NULL) == 0);
	CHECK(connections_read(&seen, &tree, &h->others, &h->err) == 0);
	CHECK(seen.n == 1 && seen.items[0].elsewhere >= 0 && h->n_drained == 1);
	struct connection_end *own = &seen.items[0].ends[seen.items[0].elsewhere == 0];
	own->file = 7;
	write_down(&h->c, &seen);
	CHECK(h->c.items[0].elsewhere == seen.items[0].elsewhere);
	connection_abort(own->fd);
	return NULL;
}

static void both(void *(*fn)(void *), struct half *one, struct half *other)
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, fn, one) == 0);
	fn(other);
	CHECK(pthread_join(thread, NULL) == 0);
}

static int fd_of(const struct half *h)
{
	return h->c.items[0].ends[h->c.items[0].elsewhere == 0].fd;
}

static void *make_half_of(void *arg)
{
	struct half *h = arg;

	h->r = connections_make(&h->c, false, &h->others, NULL, NULL, &h->err);
	return NULL;
}

static void made_anew_by_two(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), gone[2];
	struct half accepting = { .c = CONNECTIONS_EMPTY }, connecting = { .c = CONNECTIONS_EMPTY };
	socklen_t len = sizeof(at);

	CHECK(pipe(gone) == 0 && bind(listener, (void *)&at, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (void *)&at, &len) == 0);
	struct little a = little_start(accept_and_send, &listener),
		      b = little_start(connect_and_send, &at);
	close(listener);
	little_wait_ready(&a);
	little_wait_ready(&b);
	accepting.of = &a;
	connecting.of = &b;
	accepting.others = (struct connection_others){ nothing_to_wait_for, &accepting.n_drained,
						       gone[0], "theirs" };
	connecting.others = (struct connection_others){ nothing_to_wait_for, &connecting.n_drained,
							gone[0], "another" };
	both(take_half, &accepting, &connecting);
	little_end(&a);
	little_end(&b);

	/* Somebody else at the other address is sent nothing of what was in the queues. */
	both(make_half_of, &accepting, &connecting);
	CHECK((accepting.r == -EACCES || accepting.r == -ECONNRESET) &&
	      (connecting.r == -EACCES || connecting.r == -ECONNRESET));
	CHECK(accepting.r == -EACCES || connecting.r == -EACCES);
	connecting.others.secret = "theirs";

	both(make_half_of, &accepting, &connecting);
	CHECK(accepting.r == 0 && connecting.r == 0);
	expect_letters(fd_of(&accepting), N_LESS, 'n');
	expect_letters(fd_of(&connecting), N_QUEUED, 'a');
	send_letters(fd_of(&accepting), 10, 'a');
	expect_letters(fd_of(&connecting), 10, 'a');
	connections_fini(&accepting.c);
	char byte;
	CHECK(recv(fd_of(&connecting), &byte, 1, 0) < 0 && errno == ECONNRESET);

	/* Nobody waits for one who has given up. */
	connection_abort(fd_of(&connecting));
	close(take_fd(&connecting.c.items[0].ends[connecting.c.items[0].elsewhere == 0].fd));
	close(gone[1]);
	make_half_of(&connecting);
	CHECK(connecting.r == -ECANCELED);
	connections_fini(&connecting.c);
	close(gone[0]);
}

int main(void)
{
	made_anew();
	made_anew_by_two();
	of_others();
	return 0;
}
