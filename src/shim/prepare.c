// SPDX-License-Identifier: MIT
/*
 * Host memory for a copy of the job's device memory, ready before the copy is wanted: the first suspend would otherwise
 * wait for the kernel to give it out. The broker has it ready, as long as a pipe of ours is open, and decides how
 * much. The shim says for which processes, once the job has run for a while, and again when they have changed. A job
 * whose copy is kept needs none, nor one that does not run.
 */
#include "shim/shim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/log.h"
#include "client/broker.h"
#include "process/process.h"

/* A job that has run for a minute is to find its memory ready, one that ends soon is to cost nothing. */
enum { FIRST_MS = 10000, EVERY_MS = 30000, LITTLE_MOST_MS = 600000 };

static void set_timer(struct shim_prepare *p, bool armed)
{
	if (timer_set(p->fd, armed ? p->pause_ms : 0, 0) < 0)
		log_debug("no memory is made ready: reason=\"%m\"");
	p->armed = armed;
}

static void let_go(struct shim_prepare *p)
{
	cleanup_close(&p->kept_fd);
	free(take_ptr(&p->pids));
	p->n_pids = 0;
}

void prepare_init(struct shim *s)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	s->prepare = (struct shim_prepare){ .fd = -1, .kept_fd = -1 };
	if (conf_load(&conf, NULL) == 0 && conf.prepare)
		s->prepare.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
}

void prepare_update(struct shim *s)
{
	struct shim_prepare *p = &s->prepare;

	if (p->fd < 0 || p->task.state == TASK_WORKING)
		return;
	task_join(&p->task);
	pthread_mutex_lock(&s->lock);
	/* During an operation what is ready stays ready: a suspend is about to use it. */
	const bool wants = s->busy ? p->armed
				   : s->job.state == JOB_RUNNING &&
					     s->job.data_path == JOB_DATA_BROKER &&
					     !vault_baseline_bytes(&s->vault);
	pthread_mutex_unlock(&s->lock);
	if (wants && !p->armed)
		p->pause_ms = FIRST_MS;
	if (!wants)
		let_go(p);
	if (wants != p->armed)
		set_timer(p, wants);
}

static int compare_pids(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return x < y ? -1 : x > y;
}

/* The members of the job (owned), in order. */
static pid_t *find_pids(struct shim *s, size_t *ret_n, bool *ret_simulated)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	pthread_mutex_lock(&s->lock);
	const struct proc_members members = job_members(&s->job);
	*ret_simulated = s->job.simulated;
	pthread_mutex_unlock(&s->lock);
	if (proc_members_read(&tree, &members, NULL) < 0)
		return NULL;
	pid_t *pids = calloc(tree.n + 1, sizeof(*pids));
	for (size_t i = 0; pids && i < tree.n; i++)
		pids[i] = tree.items[i].id.pid;
	if (pids)
		qsort(pids, tree.n, sizeof(*pids), compare_pids);
	*ret_n = tree.n;
	return pids;
}

static bool broker_is_gone(const struct shim_prepare *p)
{
	struct pollfd fd = { .fd = p->kept_fd, .events = POLLOUT };

	return p->kept_fd < 0 || (poll(&fd, 1, 0) > 0 && fd.revents & (POLLERR | POLLHUP));
}

static int ask_broker(struct shim_prepare *p, const pid_t *pids, size_t n, bool simulated,
		      struct brumate_error *err)
{
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	uint64_t bytes = 0;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return brumate_fail(err, errno, "pipe: %m");
	auto_close int theirs = ends[0], ours = ends[1];
	int r = broker_client_open(&b, simulated, err);
	if (r == 0)
		r = broker_client_prepare(&b, pids, n, theirs, &bytes, err);
	if (r < 0)
		return r;
	p->little = !bytes;
	let_go(p);
	p->kept_fd = bytes ? take_fd(&ours) : -1;
	return 0;
}

/* In its own thread: the broker may have to be started, and to load the driver. */
static void *look(void *arg)
{
	struct shim *s = arg;
	struct shim_prepare *p = &s->prepare;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	size_t n = 0;
	bool simulated;
	auto_free pid_t *pids = find_pids(s, &n, &simulated);

	if (pids &&
	    (broker_is_gone(p) || n != p->n_pids || memcmp(pids, p->pids, n * sizeof(*pids)))) {
		if (ask_broker(p, pids, n, simulated, &err) < 0) {
			log_debug("no memory is made ready: reason=\"%s\"", err.text);
		} else if (p->kept_fd >= 0) {
			p->pids = take_ptr(&pids);
			p->n_pids = n;
		}
	}
	p->task.state = TASK_DONE;
	shim_wake(s);
	return NULL;
}

void prepare_due(struct shim *s)
{
	struct shim_prepare *p = &s->prepare;
	uint64_t times;

	if (read(p->fd, &times, sizeof(times)) < 0 || p->task.state == TASK_WORKING)
		return;
	task_join(&p->task);
	/* Who has little is looked at ever more seldom. */
	p->pause_ms = p->little && p->pause_ms >= EVERY_MS && p->pause_ms < LITTLE_MOST_MS
			      ? p->pause_ms * 2
			      : EVERY_MS;
	pthread_mutex_lock(&s->lock);
	const bool busy = s->busy;
	pthread_mutex_unlock(&s->lock);
	set_timer(p, true);
	if (!busy)
		task_start(&p->task, look, s);
}

void prepare_fini(struct shim *s)
{
	struct shim_prepare *p = &s->prepare;

	task_join(&p->task);
	let_go(p);
	cleanup_close(&p->fd);
}
