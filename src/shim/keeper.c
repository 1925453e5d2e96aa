// SPDX-License-Identifier: MIT
/*
 * brumate-shim --keep JOBDIR: the keeper of a job (client/keeper.h), started with its listening socket as fd 3. It holds
 * file descriptors, and a lock by which anybody sees that it lives. Where the shim dies, which hangs up, it starts the
 * next one at once, as the next command would. It ends when nobody is connected and it holds nothing, or the process
 * that it watches has ended. With a name of a program after it, that one is started in the place of the shim.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/fd.h"
#include "base/start.h"
#include "client/keeper.h"
#include "client/shim.h"

enum { SOCKET_FD = 3, CLIENTS_MAX = 8, ALONE_MS = 10000, PAUSE_MS = 10, PAUSE_MS_MAX = 10000 };
enum { LOOKS_ALONE = 50 }; /* at a shim that hung up, PAUSE_MS apart, where nothing is held */

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
	const char *dir;  /* of the job; NULL: no shim is started */
	const char *heir; /* the program that is started in the place of the shim; NULL: the shim */
	uint64_t start_ns; /* when to look for a shim, while nobody is connected */
	int pause_ms;	   /* until it is looked for again */
	unsigned looks_alone;
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

	int r = array_add(k->items, k->n, (struct kept){ tag, fd });
	if (r < 0)
		close(fd);
	return r;
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
	if (n_fds != (takes ? m->n : 0) || (m->op == KEEPER_WATCH && m->n > 1)) {
		for (size_t i = 0; i < n_fds; i++)
			close(fds[i]);
		m->error = -EBADMSG;
	} else if (m->op == KEEPER_GIVE) {
		return give(k, client);
	} else if (m->op == KEEPER_WATCH) {
		if (m->n || !k->n)
			watch(k, m->n ? fds[0] : -1);
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

/* Waits once, and serves the clients that sent something. Returns how many descriptors were ready, or -1. */
static int round_of(struct keep *k, int timeout_ms)
{
	struct pollfd fds[2 + CLIENTS_MAX] = { { .fd = SOCKET_FD, .events = POLLIN },
					       { .fd = k->root_fd, .events = POLLIN } };
	size_t n = k->n_clients;

	for (size_t i = 0; i < n; i++)
		fds[2 + i] = (struct pollfd){ .fd = k->clients[i], .events = POLLIN };
	int ready = poll(fds, 2 + n, timeout_ms);
	if (ready < 0)
		return errno == EINTR ? 0 : -1;
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
	return ready;
}

/* A process that looks for a keeper tries to take this lock (job/job.h), and reads in its file which process has it. */
static int take_lock(const char *dir)
{
	auto_free char *path = dir ? path_format("%s/" JOB_KEEPER_LOCK, dir) : NULL;
	int fd = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
	struct proc_id self;

	if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0)
		cleanup_close(&fd);
	if (fd >= 0 && proc_identify(&self, getpid(), NULL) == 0 && ftruncate(fd, 0) == 0)
		dprintf(fd, "%d %llu\n", self.pid, (unsigned long long)self.start_ticks);
	return fd;
}

/* An owner that is no shim needs a successor only as long as it has noted that. */
static bool wants_next(const struct keep *k)
{
	auto_free char *note = k->heir ? path_format("%s/" KEEPER_HEIR_NOTE, k->dir) : NULL;

	return !k->heir || (note && (access(note, F_OK) == 0 || errno != ENOENT));
}

/* Whether the shim has died. One that lives will connect. */
static bool has_lost_shim(const struct keep *k)
{
	const struct job job = { .dir = (char *)k->dir };

	return k->dir && k->root_fd >= 0 && shim_has_ended(&job) && wants_next(k);
}

/* Nobody is connected: starts the next shim, now and then again until there is one. */
static void call_next_shim(struct keep *k)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (deadline_left_ms(k->start_ns) > 0 || !has_lost_shim(k))
		return;
	log_warn("the %s has ended, starting another: dir=%s", k->heir ? "helper" : "shim", k->dir);
	if ((k->heir ? keeper_start_heir(k->heir, k->dir, &err) : shim_start(k->dir, &err)) < 0)
		log_error("none can be started: reason=\"%s\"", err.text);
	reserve_fill();
	k->start_ns = deadline_in_ms((uint64_t)k->pause_ms);
	k->pause_ms = 2 * k->pause_ms < PAUSE_MS_MAX ? 2 * k->pause_ms : PAUSE_MS_MAX;
}

/* How long to wait for a message. */
static int patience_ms(const struct keep *k, bool met)
{
	if (!met)
		return ALONE_MS;
	return k->n_clients ? -1 : k->pause_ms;
}

/* The last client has hung up, or there has been none for a while. Returns false when the keeper is to end. */
static bool go_on_alone(struct keep *k)
{
	if (k->root_ended)
		return false;
	call_next_shim(k);
	/* A shim that dies hangs up before its lock is free, so one that hung up without a word may yet turn out to
	 * have died. */
	return k->n || (k->root_fd >= 0 && k->looks_alone++ < LOOKS_ALONE);
}

int keep_run(const char *dir, const char *heir)
{
	struct keep k = { .root_fd = -1, .dir = dir, .heir = heir, .pause_ms = PAUSE_MS };
	auto_close int lock_fd = take_lock(dir);
	bool met = false;
	int ready;

	(void)lock_fd; /* is held to the end */
	limits_raise_files();
	limits_lower_score();
	reserve_fill();
	/* The program that started the keeper connects at once. */
	while ((ready = round_of(&k, patience_ms(&k, met))) >= 0) {
		if (!met && !ready && !k.n_clients)
			break;
		met = met || k.n_clients;
		if (k.n_clients) {
			k.pause_ms = PAUSE_MS;
			k.start_ns = 0;
			k.looks_alone = 0;
		} else if (met && !go_on_alone(&k)) {
			break;
		}
	}
	log_debug("keeper ends: held=%zu", k.n);
	keep_fini(&k);
	return EXIT_OK;
}
