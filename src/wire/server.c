// SPDX-License-Identifier: MIT
/*
 * A server: accepts connections and runs each in a thread of its own. Owns the threads; one that has
 * ended is joined at the next accept, count or free. A connection closes its fd itself, under the
 * lock, so that nobody shuts down a number that has been given to another.
 */
#include "wire/private.h"
#include "base/clock.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 512 };

struct connection {
	struct connection *next;
	struct wire_server *server;
	pthread_t thread;
	struct wire wire;
	bool ended; /* the thread touches nothing from here on */
};

struct wire_server {
	struct wire_service service;
	int listen_fd;
	int spare_fd; /* given up to turn connections away when fds run out */
	atomic_bool stopping;
	pthread_mutex_t lock; /* of what follows */
	struct connection *connections;
	size_t n_open;
	uint64_t last_end_ns;
};

int wire_server_new(struct wire_server **ret, const struct wire_service *service, int listen_fd,
		    struct brumate_error *err)
{
	struct wire_server *s = calloc(1, sizeof(*s));

	if (!s) {
		close(listen_fd);
		return brumate_fail(err, ENOMEM, "server: %m");
	}
	s->service = *service;
	s->listen_fd = listen_fd;
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	s->last_end_ns = clock_now_ns();
	pthread_mutex_init(&s->lock, NULL);
	*ret = s;
	return 0;
}

int wire_server_fd(const struct wire_server *s)
{
	return s->listen_fd;
}

/* Waits for the next call as long as it takes, but then for its end only so long. */
static int receive_call(struct wire *w, struct wire_message *ret)
{
	struct pollfd p = { .fd = w->fd, .events = POLLIN };

	while (w->len == 0 && poll(&p, 1, -1) < 0)
		if (errno != EINTR)
			return -errno;
	return wire_receive(w, ret, deadline_in_ms(WIRE_MESSAGE_TIMEOUT_MS), NULL);
}

static void *run_connection(void *arg)
{
	struct connection *c = arg;
	struct wire_server *s = c->server;
	int r = 0;

	while (r == 0 && !atomic_load(&s->stopping)) {
		auto_(wire_message_fini) struct wire_message m = WIRE_MESSAGE_EMPTY;

		r = receive_call(&c->wire, &m);
		if (r == 0)
			r = wire_serve(&c->wire, &s->service, &s->stopping, &m);
	}

	pthread_mutex_lock(&s->lock);
	wire_fini(&c->wire);
	c->ended = true;
	s->n_open--;
	s->last_end_ns = clock_now_ns();
	pthread_mutex_unlock(&s->lock);
	return NULL;
}

/* Takes ended connections out of the list, joins and frees them. */
static void reap(struct wire_server *s)
{
	struct connection *ended = NULL;

	pthread_mutex_lock(&s->lock);
	for (struct connection **p = &s->connections; *p;) {
		struct connection *c = *p;

		if (!c->ended) {
			p = &c->next;
			continue;
		}
		*p = c->next;
		c->next = ended;
		ended = c;
	}
	pthread_mutex_unlock(&s->lock);

	while (ended) {
		struct connection *c = ended;

		ended = c->next;
		pthread_join(c->thread, NULL);
		free(c);
	}
}

/* Without a free fd, the waiting connection would keep the caller's poll loop spinning. */
static void turn_away(struct wire_server *s)
{
	cleanup_close(&s->spare_fd);
	int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd >= 0)
		close(fd);
	s->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

void wire_server_accept(struct wire_server *s)
{
	reap(s);
	auto_close int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0) {
		if (errno == EMFILE || errno == ENFILE)
			turn_away(s);
		return;
	}

	struct connection *c = calloc(1, sizeof(*c));
	if (!c)
		return;
	pthread_mutex_lock(&s->lock);
	if (s->n_open < CONNECTIONS_MAX) {
		wire_init(&c->wire, take_fd(&fd));
		c->server = s;
		if (thread_start(&c->thread, run_connection, c) == 0) {
			c->next = s->connections;
			s->connections = c;
			s->n_open++;
			c = NULL;
		} else {
			wire_fini(&c->wire);
		}
	}
	pthread_mutex_unlock(&s->lock);
	free(c);
}

size_t wire_server_connections(struct wire_server *s, uint64_t *ret_last_end_ns)
{
	reap(s);
	pthread_mutex_lock(&s->lock);
	size_t n = s->n_open;
	if (ret_last_end_ns)
		*ret_last_end_ns = s->last_end_ns;
	pthread_mutex_unlock(&s->lock);
	return n;
}

void wire_server_free(struct wire_server *s)
{
	if (!s)
		return;

	cleanup_close(&s->listen_fd);
	atomic_store(&s->stopping, true);
	pthread_mutex_lock(&s->lock);
	for (struct connection *c = s->connections; c; c = c->next)
		if (!c->ended)
			shutdown(c->wire.fd, SHUT_RD); /* replies can still be sent */
	struct connection *c = s->connections;
	s->connections = NULL;
	pthread_mutex_unlock(&s->lock);

	while (c) {
		struct connection *next = c->next;

		pthread_join(c->thread, NULL);
		free(c);
		c = next;
	}
	cleanup_close(&s->spare_fd);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
