// SPDX-License-Identifier: MIT
/*
 * Host memory for a copy of the job's device memory, ready before the copy is wanted: the first suspend would otherwise
 * wait for the kernel to give it out. The broker has it ready, as long as a pipe of ours is open, and decides how
 * much. The shim says for which processes, once the job has run for a while, and again when they have changed; and how much
 * of a host copy it keeps. A job that does not run needs none.
 *
 * A spare host copy is released when the broker hangs up, as it does when another process needs the memory: it alone
 * knows. So a copy that the broker does not know of is released, too.
 *
 * Where all agents of the job ask for room (room.c), the broker may keep the GPUs open for it. It hangs up where that
 * is to be another way by now.
 */
#include "shim/shim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/log.h"
#include "client/agent.h"
#include "client/broker.h"
#include "process/process.h"

/* A job that has run for a minute is to find its memory ready, one that ends soon is to cost nothing. */
enum {
	FIRST_MS = 10000,
	AGAIN_MS = 3000, /* after an operation, before what is still pinned is released */
	HUNG_UP_MS = 100,
	EVERY_MS = 30000,
	LITTLE_MOST_MS = 600000,
};

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
	p->kept_bytes = 0;
}

void prepare_init(struct shim *s)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;

	s->prepare = (struct shim_prepare){ .fd = -1, .kept_fd = -1, .room = { .at = ROOM_NONE } };
	if (conf_load(&conf, NULL) < 0 || !conf.prepare)
		return;
	s->prepare.fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	s->prepare.may_open = conf.prepare_gpu && !s->job.by_pid;
	s->prepare.room.at.dir = s->prepare.may_open ? job_agent_dir(&s->job.target) : NULL;
	room_tell(&s->prepare.room.at, NULL, 0); /* of a predecessor's */
}

int prepare_fd(const struct shim *s)
{
	return s->prepare.task.state == TASK_WORKING ? -1 : s->prepare.kept_fd;
}

/* Takes the broker's answer from the thread: announces the GPUs that are open, or stops listening if there are none. */
static void take_answer(struct shim_prepare *p)
{
	if (!p->answered)
		return;
	p->answered = false;
	if (p->answer.n_open)
		room_tell(&p->room.at, p->answer.open, p->answer.n_open);
	else
		room_close(&p->room.at);
}

/* How much of a host copy the job keeps. Under the lock, and not during an operation. */
static uint64_t find_kept(const struct shim *s, bool *ret_spare)
{
	uint64_t spare = vault_spare_bytes(&s->vault);

	*ret_spare = spare;
	return spare ? spare : vault_baseline_bytes(&s->vault);
}

/* Not during an operation, which may be about to use it; what is left of it then is looked at again. */
static void give_spare_back(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	const bool given = !s->busy && vault_drop_spare(&s->vault, &s->job.target);
	if (given) {
		s->job.kept_bytes = 0;
		job_save(&s->job, NULL);
	}
	pthread_mutex_unlock(&s->lock);
	if (given)
		log_info("the host copy of the running job is given back: job=%s", s->job.id);
}

/* Those who look how much there is are not to count on what is going. */
void prepare_hung_up(struct shim *s)
{
	struct shim_prepare *p = &s->prepare;

	give_spare_back(s);
	p->gives_back = p->gives_back || p->room.at.held_fd >= 0;
	room_tell(&p->room.at, NULL, 0);
	let_go(p);
	if (!p->armed)
		return;
	p->pause_ms = HUNG_UP_MS;
	set_timer(p, true);
}

void prepare_update(struct shim *s)
{
	struct shim_prepare *p = &s->prepare;

	if (p->fd < 0)
		give_spare_back(s);
	if (p->fd < 0 || p->task.state == TASK_WORKING || !room_settle(&p->room))
		return;
	task_join(&p->task);
	take_answer(p);
	if (p->unwatched)
		give_spare_back(s);
	p->unwatched = false;
	pthread_mutex_lock(&s->lock);
	/* During an operation what is ready stays ready: a suspend is about to use it. */
	const bool wants =
		s->busy ? p->armed
			: s->job.state == JOB_RUNNING && s->job.data_path == JOB_DATA_BROKER;
	bool spare = false;
	const bool news = !s->busy && find_kept(s, &spare) != p->kept_bytes && spare;
	pthread_mutex_unlock(&s->lock);
	if (wants && !p->armed)
		p->pause_ms = p->asked ? AGAIN_MS : FIRST_MS;
	const bool soon = wants && news && p->pause_ms != HUNG_UP_MS;
	if (soon)
		p->pause_ms = HUNG_UP_MS;
	if (!wants) {
		let_go(p);
		room_close(&p->room.at);
	}
	if (wants != p->armed || soon)
		set_timer(p, wants);
}

static int compare_pids(const void *a, const void *b)
{
	pid_t x = *(const pid_t *)a, y = *(const pid_t *)b;

	return x < y ? -1 : x > y;
}

/* Whether all processes of the tree that have an agent would ask for the device memory that is held; false if there are
 * none. */
static bool all_ask_for_room(const struct shim_prepare *p, const struct proc_tree *tree)
{
	auto_close int dir_fd = p->room.at.dir ? agent_dir_open(p->room.at.dir) : -1;
	bool any = false;

	for (size_t i = 0; i < tree->n && dir_fd >= 0; i++) {
		const pid_t pid = tree->items[i].inner_pid;

		if (!agent_listens(p->room.at.dir, pid))
			continue;
		if (!agent_asks_for_room(dir_fd, pid))
			return false;
		any = true;
	}
	return any;
}

/* The members of the job (owned), in order; and what is kept of their memory. */
static pid_t *find_pids(struct shim *s, struct broker_prepare *ret, bool *ret_simulated)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	pthread_mutex_lock(&s->lock);
	const struct proc_members members = job_members(&s->job);
	*ret_simulated = s->job.simulated;
	ret->kept_bytes = s->busy ? s->prepare.kept_bytes : find_kept(s, &ret->spare);
	pthread_mutex_unlock(&s->lock);
	if (proc_members_read(&tree, &members, NULL) < 0)
		return NULL;
	pid_t *pids = calloc(tree.n + 1, sizeof(*pids));
	for (size_t i = 0; pids && i < tree.n; i++)
		pids[i] = tree.items[i].id.pid;
	if (pids)
		qsort(pids, tree.n, sizeof(*pids), compare_pids);
	ret->pids = pids;
	ret->n = tree.n;
	ret->yields = s->prepare.listens && all_ask_for_room(&s->prepare, &tree);
	return pids;
}

static int ask_broker(struct shim_prepare *p, const struct broker_prepare *request, bool simulated,
		      struct brumate_error *err)
{
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	int fd = -1;
	int r = broker_client_open(&b, simulated, err);

	if (r == 0)
		r = broker_client_prepare(&b, request, &p->answer, &fd, err);
	if (r < 0)
		return r;
	p->little = fd < 0;
	p->answered = true;
	let_go(p);
	p->kept_fd = fd;
	return 0;
}

/* In its own thread: the broker may have to be started, and to load the driver. */
static void *look(void *arg)
{
	struct shim *s = arg;
	struct shim_prepare *p = &s->prepare;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct broker_prepare request = { 0 };
	bool simulated;
	auto_free pid_t *pids = find_pids(s, &request, &simulated);

	if (p->gives_back)
		room_give_back(simulated);
	p->gives_back = false;
	if (pids && (broker_has_hung_up(p->kept_fd) || request.n != p->n_pids ||
		     request.kept_bytes != p->kept_bytes ||
		     memcmp(pids, p->pids, request.n * sizeof(*pids)))) {
		p->asked = true;
		if (ask_broker(p, &request, simulated, &err) < 0) {
			p->answer.n_open = 0;
			p->answered = true;
			log_debug("no memory is made ready: reason=\"%s\"", err.text);
		} else if (p->kept_fd >= 0) {
			p->pids = take_ptr(&pids);
			p->n_pids = request.n;
			p->kept_bytes = request.kept_bytes;
		}
		p->unwatched = request.spare && p->kept_fd < 0;
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
	/* Processes that have little are looked at less and less often. */
	p->pause_ms = p->little && p->pause_ms >= EVERY_MS && p->pause_ms < LITTLE_MOST_MS
			      ? p->pause_ms * 2
			      : EVERY_MS;
	pthread_mutex_lock(&s->lock);
	const bool busy = s->busy;
	p->room.simulated = s->job.simulated;
	pthread_mutex_unlock(&s->lock);
	set_timer(p, true);
	if (busy)
		return;
	/* Before the broker opens any: a process may need the memory at once. */
	p->listens = p->may_open && room_listen(&p->room.at);
	task_start(&p->task, look, s);
}

void prepare_fini(struct shim *s)
{
	struct shim_prepare *p = &s->prepare;

	task_join(&p->task);
	let_go(p);
	room_fini(&p->room);
	cleanup_close(&p->fd);
}
