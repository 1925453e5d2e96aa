// SPDX-License-Identifier: MIT
/* Keeps memory ready for containers. See prepare.h. */
#include "edges/containers/prepare.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/array.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "base/paths.h"
#include "base/thread.h"
#include "client/agent.h"
#include "client/broker.h"
#include "client/room.h"
#include "job/job.h"
#include "process/process.h"
#include "process/scan.h"

/*
 * Intervals for finding containers: one that lives for a minute should have its memory ready. The broker has room for
 * few clients, mostly jobs; it keeps nothing for a container with little device memory, which is asked about less and
 * less often.
 */
enum {
	LOOK_MS = 10000,
	EVERY_MS = 30000,
	LITTLE_MOST_MS = 600000,
	PIDS_MAX = 64, /* of a container */
	WATCHED_MAX = 1024,
	WANTED_MAX = 32,
};

struct pids {
	pid_t items[PIDS_MAX];
	size_t n;
};

/* A container, identified by the tmpfs in which its agents listen: each has its own. */
struct watched {
	dev_t place;
	struct pids now, asked;
	int kept_fd;	  /* -1: no memory is wanted for it */
	struct room room; /* for its agents, in its tmpfs */
	uint64_t due_ns;
	unsigned pause_ms;
};

struct containers {
	struct watched *items;
	size_t n, n_wanted;
	char own_namespace[64];
	struct gpu_kind kind;
};

/* ---- who is there ---- */

static struct watched *find(struct containers *w, dev_t place)
{
	for (size_t i = 0; i < w->n; i++)
		if (w->items[i].place == place)
			return &w->items[i];
	struct watched *items =
		w->n < WATCHED_MAX ? array_room(w->items, w->n, sizeof(*items)) : NULL;
	if (!items)
		return NULL;
	w->items = items;
	items[w->n] = (struct watched){ .place = place,
					.kept_fd = -1,
					.room = ROOM_NONE,
					.due_ns = deadline_in_ms(LOOK_MS),
					.pause_ms = EVERY_MS };
	return &items[w->n++];
}

/* Whether an agent of the process listens in a container, and where. */
static bool has_agent(pid_t pid, dev_t *ret_place)
{
	auto_free char *dir = path_format("/proc/%d/root" AGENT_CONTAINER_DIR, pid);
	auto_close int dir_fd = dir ? agent_dir_open(dir) : -1;
	struct proc_info info;
	struct stat st;

	if (dir_fd < 0 || fstat(dir_fd, &st) < 0 || proc_read(&info, pid, NULL) < 0 ||
	    !agent_listens(dir, info.inner_pid))
		return false;
	*ret_place = st.st_dev;
	return true;
}

static void look_at(struct containers *w, pid_t pid)
{
	char namespace[64];
	dev_t place;

	if (proc_link_read(pid, "ns/mnt", namespace, sizeof(namespace)) <= 0 ||
	    !strcmp(namespace, w->own_namespace) || !has_agent(pid, &place) ||
	    scan_uses_gpu(pid) <= 0)
		return;
	struct watched *c = find(w, place);
	if (c && c->now.n < PIDS_MAX)
		c->now.items[c->now.n++] = pid;
}

/* Returns false if they cannot be examined. */
static bool look_at_all(struct containers *w)
{
	auto_closedir DIR *proc = opendir("/proc");
	pid_t pid;
	int r = -1;

	for (size_t i = 0; i < w->n; i++)
		w->items[i].now.n = 0;
	while (proc && (r = proc_next(proc, &pid)) > 0)
		look_at(w, pid);
	return r == 0;
}

/* ---- what is wanted for them ---- */

static void let_go(struct containers *w, struct watched *c)
{
	if (c->kept_fd >= 0)
		w->n_wanted--;
	cleanup_close(&c->kept_fd);
	room_close(&c->room);
	cleanup_free(&c->room.dir);
}

/* Then the job's shim takes care of it. */
static bool is_of_job(const struct watched *c)
{
	auto_(job_fini) struct job job = JOB_EMPTY;

	return job_find_by_pid(&job, c->now.items[0], NULL) == 0;
}

/* Whether all agents ask for memory that is held of their GPU when they run short of it. */
static bool all_ask_for_room(const struct watched *c)
{
	auto_close int dir_fd = c->room.dir ? agent_dir_open(c->room.dir) : -1;
	struct proc_info info;

	for (size_t i = 0; i < c->now.n; i++)
		if (dir_fd < 0 || proc_read(&info, c->now.items[i], NULL) < 0 ||
		    !agent_asks_for_room(dir_fd, info.inner_pid))
			return false;
	return true;
}

/* Listens before the broker opens a GPU: a program may run short of memory at once. */
static bool make_room(struct watched *c)
{
	c->room.dir = path_format("/proc/%d/root" AGENT_CONTAINER_DIR, c->now.items[0]);
	return all_ask_for_room(c) && room_listen(&c->room);
}

static int ask_broker(struct watched *c, const struct brumate_conf *conf, int *ret_fd,
		      struct brumate_error *err)
{
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	const bool yields = conf->prepare_gpu && make_room(c);
	const struct broker_prepare request = { .pids = c->now.items,
						.n = c->now.n,
						.yields = yields };
	struct broker_prepared prepared = { .n_open = 0 };
	const struct gpu_kind kind = gpu_kind_here(conf_wants_simulated(conf));
	int r = broker_client_open(&b, &kind, err);

	if (r == 0)
		r = broker_client_prepare(&b, &request, &prepared, ret_fd, err);
	if (r == 0 && prepared.n_open)
		room_tell(&c->room, prepared.open, prepared.n_open);
	else
		room_close(&c->room);
	return r;
}

static void want(struct containers *w, struct watched *c, const struct brumate_conf *conf)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	int before_fd = fcntl(
		c->kept_fd, F_DUPFD_CLOEXEC,
		0); /* keep the old connection until there is a new one, so that memory stays ready */
	int fd = -1;

	let_go(w, c);
	if (ask_broker(c, conf, &fd, &err) < 0)
		log_debug("no memory is made ready for a container: reason=\"%s\"", err.text);
	cleanup_close(&before_fd);
	c->kept_fd = fd;
	c->asked = c->now;
	c->pause_ms = fd < 0 && c->pause_ms < LITTLE_MOST_MS ? c->pause_ms * 2 : EVERY_MS;
	w->n_wanted += fd >= 0;
}

static bool has_changed(const struct watched *c)
{
	return c->asked.n != c->now.n ||
	       memcmp(c->asked.items, c->now.items, c->now.n * sizeof(*c->now.items));
}

static void consider(struct containers *w, struct watched *c, const struct brumate_conf *conf)
{
	if (deadline_left_ms(c->due_ns))
		return;
	if (is_of_job(c))
		let_go(w, c);
	else if ((has_changed(c) || broker_has_hung_up(c->kept_fd)) &&
		 (c->kept_fd >= 0 || w->n_wanted < WANTED_MAX))
		want(w, c, conf);
	c->due_ns = deadline_in_ms(c->pause_ms);
}

/* Forgets containers that have no such process any more. */
static void look_at_containers(struct containers *w)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	const bool wants = conf_load(&conf, NULL) == 0 && conf.prepare;

	if (!look_at_all(w))
		return;
	w->kind = gpu_kind_here(conf_wants_simulated(&conf));
	for (size_t i = w->n; i-- > 0;) {
		struct watched *c = &w->items[i];

		if (wants && c->now.n) {
			consider(w, c, &conf);
			continue;
		}
		let_go(w, c);
		*c = w->items[--w->n];
	}
}

/* ---- who misses it ---- */

static void give_back(const struct containers *w, struct watched *c)
{
	room_tell(&c->room, NULL, 0);
	room_give_back(&w->kind);
	room_answer(&c->room);
}

/* Until the next look: frees GPUs on request of an agent, and when the broker is about to close them. */
static void listen_until(struct containers *w, uint64_t deadline_ns)
{
	struct pollfd fds[2 * WANTED_MAX];
	struct watched *of[2 * WANTED_MAX];

	for (int left_ms; (left_ms = deadline_left_ms(deadline_ns)) > 0;) {
		nfds_t n = 0;

		for (size_t i = 0; i < w->n && n + 2 <= 2 * WANTED_MAX; i++) {
			struct watched *c = &w->items[i];

			if (c->room.listen_fd < 0)
				continue;
			of[n] = of[n + 1] = c;
			fds[n++] = (struct pollfd){ .fd = c->room.listen_fd, .events = POLLIN };
			fds[n++] = (struct pollfd){ .fd = c->room.held_fd < 0
								  ? -1
								  : c->kept_fd }; /* closed */
		}
		if (poll(fds, n, left_ms) <= 0)
			continue;
		for (nfds_t i = 0; i < n; i++)
			if (fds[i].revents)
				give_back(w, of[i]);
	}
}

static void *prepare_thread(void *arg)
{
	struct containers w = { .n = 0 };

	(void)arg;
	proc_link_read(getpid(), "ns/mnt", w.own_namespace, sizeof(w.own_namespace));
	for (;;) {
		look_at_containers(&w);
		listen_until(&w, deadline_in_ms(LOOK_MS));
	}
	return NULL;
}

void container_prepare_start(void)
{
	int r = thread_start_detached(prepare_thread, NULL, 0);

	if (r < 0)
		log_warn("no memory is made ready for containers: reason=\"%s\"", strerror(-r));
}
