// SPDX-License-Identifier: MIT
/*
 * brumate-shim --keep: the keeper of a job (client/keeper.h), started with its listening socket as fd 3.
 * It holds file descriptors and nothing else: it reads no file and knows no job. It ends when nobody is connected
 * and it holds nothing, or the process that it watches has ended.
 */
#include "shim/shim.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/reserve.h"
#include "client/keeper.h"

enum { SOCKET_FD = 3, CLIENTS_MAX = 8, ALONE_MS = 10000 };

struct kept {
	struct keeper_tag tag;
	int fd;
};

struct keep {
	struct kept *items;
	size_t n;
	int root_fd; /* pidfd; -1: none */
	bool root_ended;
	int clients[CLIENTS_MAX];
	size_t n_clients;
};

static struct kept *find(struct keep *k, struct keeper_tag tag)
{
	for (size_t i = 0; i < k->n; i++)
		if (!memcmp(&k->items[i].tag, &tag, sizeof(tag)))
			return &k->items[i];
	return NULL;
}

/* Takes @fd. */
static int hold(struct keep *k, struct keeper_tag tag, int fd)
{
	struct kept *old = find(k, tag);

	if (old) {
		close(old->fd);
		old->fd = fd;
		return 0;
	}

	struct kept *items = array_room(k->items, k->n, sizeof(*items));
	if (!items) {
		close(fd);
		return -ENOMEM;
	}
	k->items = items;
	k->items[k->n++] = (struct kept){ tag, fd };
	return 0;
}

static void keep_fini(struct keep *k)
{
	for (size_t i = 0; i < k->n; i++)
		close(k->items[i].fd);
	free(k->items);
	cleanup_close(&k->root_fd);
}

static void drop(struct keep *k, struct keeper_tag tag)
{
	struct kept *item = find(k, tag);

	if (!item)
		return;
	close(item->fd);
	*item = k->items[--k->n];
}

static int give(struct keep *k, int client)
{
	size_t done = 0;
	int r = 0;

	do {
		struct keeper_message m = { .op = KEEPER_GIVE };
		int fds[KEEPER_FDS_MAX];

		for (; m.n < KEEPER_FDS_MAX && done < k->n; m.n++, done++) {
			m.tags[m.n] = k->items[done].tag;
			fds[m.n] = k->items[done].fd;
		}
		m.more = done < k->n;
		r = keeper_send(client, &m, fds, m.n);
	} while (r == 0 && done < k->n);
	return r;
}

static void watch(struct keep *k, int fd)
{
	cleanup_close(&k->root_fd);
	k->root_fd = fd;
	k->root_ended = false;
}

/* Takes the fds. Of a request whose fds do not fit its tags, none is kept. */
static int serve(struct keep *k, int client, struct keeper_message *m, int *fds, size_t n_fds)
{
	bool takes = m->op == KEEPER_HOLD || m->op == KEEPER_WATCH;

	m->error = 0;
	if (n_fds != (takes ? m->n : 0) || (m->op == KEEPER_WATCH && m->n != 1)) {
		for (size_t i = 0; i < n_fds; i++)
			close(fds[i]);
		m->error = -EBADMSG;
	} else if (m->op == KEEPER_GIVE) {
		return give(k, client);
	} else if (m->op == KEEPER_WATCH) {
		watch(k, fds[0]);
		m->tags[0].pid = (uint32_t)getpid();
	}
	for (size_t i = 0; m->error == 0 && i < m->n; i++) {
		if (m->op == KEEPER_HOLD && hold(k, m->tags[i], fds[i]) < 0)
			m->error = -ENOMEM;
		if (m->op == KEEPER_DROP)
			drop(k, m->tags[i]);
	}
	return keeper_send(client, m, NULL, 0);
}

static void take_request(struct keep *k, size_t i)
{
	struct keeper_message m;
	int fds[KEEPER_FDS_MAX];
	size_t n_fds;
	int r = keeper_receive(k->clients[i], &m, fds, &n_fds);

	if (r == -EMFILE) {
		m.error = r;
		r = keeper_send(k->clients[i], &m, NULL, 0);
	} else if (r == 0) {
		r = serve(k, k->clients[i], &m, fds, n_fds);
	}
	if (r == 0)
		return;
	close(k->clients[i]);
	k->clients[i] = k->clients[--k->n_clients];
}

static void take_client(struct keep *k)
{
	int fd = accept4(SOCKET_FD, NULL, NULL, SOCK_CLOEXEC);

	if (fd >= 0 && k->n_clients == CLIENTS_MAX)
		close(fd);
	else if (fd >= 0)
		k->clients[k->n_clients++] = fd;
}

/* Waits once, and serves who has something to say. Returns false when the keeper is to end. */
static bool round_of(struct keep *k, int timeout_ms)
{
	struct pollfd fds[2 + CLIENTS_MAX] = { { .fd = SOCKET_FD, .events = POLLIN },
					       { .fd = k->root_fd, .events = POLLIN } };
	size_t n = k->n_clients;

	for (size_t i = 0; i < n; i++)
		fds[2 + i] = (struct pollfd){ .fd = k->clients[i], .events = POLLIN };
	int ready = poll(fds, 2 + n, timeout_ms);
	if (ready < 0)
		return errno == EINTR;
	if (fds[1].revents) {
		cleanup_close(&k->root_fd);
		k->root_ended = true;
	}
	/* It goes backwards, as the last client takes the place of one that leaves. */
	for (size_t i = n; i-- > 0;)
		if (fds[2 + i].revents)
			take_request(k, i);
	if (fds[0].revents)
		take_client(k);
	return ready > 0;
}

int keep_run(void)
{
	struct keep k = { .root_fd = -1 };
	bool met = false;

	limits_raise_files();
	limits_lower_score();
	reserve_fill();
	/* Who started it connects at once. */
	while (round_of(&k, met ? -1 : ALONE_MS)) {
		met = met || k.n_clients;
		if (met && !k.n_clients && (!k.n || k.root_ended))
			break;
	}
	log_debug("keeper ends: held=%zu", k.n);
	keep_fini(&k);
	return EXIT_OK;
}
