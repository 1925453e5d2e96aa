// SPDX-License-Identifier: MIT
/* Moves device memory out of processes and back, through their agents. See park.h. */
#include "datapath/park.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/thread.h"
#include "base/user.h"
#include "base/workers.h"
#include "client/broker.h"
#include "datapath/move.h"
#include "process/pidns.h"

/* Less is copied again as fast as it is compared. */
#define SPARE_BYTES_MIN (256ull << 20)

enum {
	EXPORT_TRIES = 3,
	TELL_EVERY_MS = 10000,
	RESERVE_PART = 32,
	OTHERS_PART = 16,
	LET_IN_THREADS = 256,
};

/* ---- finding ---- */

/* An agent whose last request failed is forgotten: the driver saves its process. */
static bool has_answered(void *arg, const struct datapath_agent *a)
{
	struct progress *notes = arg;

	if (a->result == -ENOENT && !a->is_new)
		progress_note(notes,
			      "process %d has no agent: the driver alone moves its device memory",
			      a->agent.id.pid);
	else if (a->result && !a->is_new)
		progress_note(notes, "%s: the driver alone moves its device memory", a->error.text);
	return a->result == 0;
}

static bool has_agent(const struct datapath *d, struct proc_id id)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].agent.id.pid == id.pid)
			return true;
	return false;
}

/* A stopped member would not answer. */
static bool may_listen(const struct datapath *d, const struct proc_info *p)
{
	return p->state != 'Z' && p->state != 'T' && p->state != 't' && !has_agent(d, p->id) &&
	       agent_listens(d->agent_dir, p->inner_pid);
}

bool park_has_missed(const struct datapath *d, const struct proc_tree *tree)
{
	for (size_t i = 0; d->agent_dir && i < tree->n; i++)
		if (may_listen(d, &tree->items[i]))
			return true;
	return false;
}

static void add_agent(struct datapath *d, struct proc_id id, bool is_new)
{
	d->agents[d->n_agents++] = (struct datapath_agent){
		.agent = { .fd = -1, .id = id, .simulated = d->target->simulated }, .is_new = is_new
	};
}

static bool is_among(const struct proc_id *ids, size_t n, struct proc_id id)
{
	for (size_t i = 0; i < n; i++)
		if (proc_is_same(ids[i], id))
			return true;
	return false;
}

/* An agent that does not answer may still exist. */
static bool may_have_agent(const struct datapath *d, struct proc_id id)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (proc_is_same(d->agents[i].agent.id, id))
			return d->agents[i].result != -ENOENT;
	return false;
}

/* The driver does not know the process any more and no agent listens in it: it has executed another program. */
static void find_gone(struct datapath *d, const struct proc_id *ids, size_t n)
{
	const struct vault *v = d->vault;

	d->gone = calloc(v->n_pieces + 1, sizeof(*d->gone));
	for (size_t i = 0; d->gone && i < v->n_pieces; i++) {
		struct proc_id id = v->pieces[i].process;

		if (!is_among(ids, n, id) && !may_have_agent(d, id) &&
		    !is_among(d->gone, d->n_gone, id))
			d->gone[d->n_gone++] = id;
	}
}

/* A failure on our side says nothing about the agent. */
static bool is_our_lack(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE || r == -ENOBUFS;
}

static int check_asked(const struct datapath *d, struct brumate_error *err)
{
	for (size_t i = 0; i < d->n_agents; i++) {
		const struct datapath_agent *a = &d->agents[i];

		if (a->result == 0 && a->agent.fd < 0)
			return brumate_fail(err, EAGAIN, "process %d: its agent was not asked: %m",
					    a->agent.id.pid);
		if (!is_our_lack(a->result))
			continue;
		if (err)
			*err = a->error;
		return a->result;
	}
	return 0;
}

int park_find(struct datapath *d, const struct proc_tree *tree, const struct proc_id *ids, size_t n,
	      struct progress *notes, struct brumate_error *err)
{
	datapath_drop_agents(d);
	if (!d->vault || !d->uses_agents)
		return 0;
	d->agents = calloc(n + tree->n + 1, sizeof(*d->agents));
	if (!d->agents || !d->agent_dir)
		return brumate_fail(err, ENOMEM, "%m");
	agent_sweep(d->agent_dir, d->target->root, tree);
	for (size_t i = 0; i < n; i++)
		add_agent(d, ids[i], false);
	for (size_t i = 0; i < tree->n; i++)
		if (may_listen(d, &tree->items[i]))
			add_agent(d, tree->items[i].id, true);
	agents_ask(d, agents_reach, NULL);
	int r = check_asked(d, err);
	if (r < 0) {
		park_detach(d);
		datapath_drop_agents(d);
		return r;
	}
	find_gone(d, ids, n);
	agents_keep(d, has_answered, notes);
	park_detach(d);
	return 0;
}

int park_check(const struct datapath *d, struct brumate_error *err)
{
	const struct vault *v = d->vault;

	for (size_t i = 0; v && i < v->n_pieces; i++) {
		struct proc_id id = v->pieces[i].process;

		if (has_agent(d, id) || is_among(d->gone, d->n_gone, id) || proc_has_ended(id))
			continue;
		brumate_fail(
			err, EIO,
			"process %d: its agent does not answer, so its device memory cannot be "
			"returned",
			id.pid);
		brumate_hint(err, "try again");
		return -EIO;
	}
	return 0;
}

void park_detach(struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		agent_detach(&d->agents[i].agent);
}

/* ---- gate ---- */

/* Makes the memory through which the agents drain together (wire/agent.h). A single agent, or too many of them, drain
 * alone. */
static int make_drain(struct datapath *d, struct brumate_error *err)
{
	auto_close int fd = -1;
	void *at;

	const size_t n = d->n_agents + !!d->elsewhere.all_idle;

	if (!d->n_agents || n < 2 || n > AGENT_DRAIN_MEMBERS_MAX)
		return 0;
	fd = memfd_create("brumate-drain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (fd < 0 || ftruncate(fd, sizeof(*d->drain)) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return brumate_fail(err, errno, "shared memory of the agents: %m");
	at = mmap(NULL, sizeof(*d->drain), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED)
		return brumate_fail(err, errno, "shared memory of the agents: %m");
	d->drain = at;
	d->drain->start_ns = clock_now_ns();
	d->drain->busy = ~0ull >> (AGENT_DRAIN_MEMBERS_MAX - n);
	d->drain_fd = take_fd(&fd);
	return 0;
}

static void drop_drain(struct datapath *d)
{
	if (!d->drain)
		return;
	munmap(d->drain, sizeof(*d->drain));
	d->drain = NULL;
	cleanup_close(&d->drain_fd);
}

/* The member is drained or does not take part: it has ended, its gate stays open, or its version drains alone. */
static void leave_drain(struct datapath *d, size_t member)
{
	__atomic_fetch_and(&d->drain->busy, ~(1ull << member), __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&d->drain->changes, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &d->drain->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ---- jobs of other nodes ---- */

/* The bit after those of the agents is theirs. */
struct elsewhere {
	struct datapath *d;
	struct agent_drain *drain;
	size_t n; /* of the agents */
	unsigned int calls,
		turn_ms; /* how many calls of each are let through at a time, and until when at least */
	pthread_t thread;
	bool started;
	atomic_bool all_asked; /* the agents have answered */
	int result;
	struct brumate_error error;
};

enum { NO_PASSES = 1, CALLS_MAX = 64, TURN_MS = 5, TURN_MS_MAX = 40 };

static void give_passes(const struct elsewhere *e, size_t n)
{
	__atomic_store_n(&e->drain->passes, NO_PASSES + (uint32_t)n, __ATOMIC_SEQ_CST);
	__atomic_fetch_add(&e->drain->changes, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &e->drain->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static uint64_t busy_here(const struct elsewhere *e)
{
	return __atomic_load_n(&e->drain->busy, __ATOMIC_SEQ_CST) & ~(1ull << e->n);
}

static void await_change(const struct elsewhere *e, uint32_t seen)
{
	const struct timespec turn = { .tv_nsec = e->turn_ms * NS_PER_MS };

	syscall(SYS_futex, &e->drain->changes, FUTEX_WAIT, seen, &turn, NULL, 0);
}

/* Members that are all busy wait for others elsewhere: they are ahead, and keep no passes for when those have caught up. Some that are
 * may wait for others here, which are idle. */
static void have_some_catch_up(const struct elsewhere *e, uint64_t busy)
{
	give_passes(e, e->n - (size_t)__builtin_popcountll(busy));
}

/* Has the members let their calls through until all are idle with no passes left. Members that are behind need as many as they are
 * behind, those that are ahead none: so it is twice as many each time, and a single one again for members that were ahead. False:
 * they will not be idle. */
static bool take_turn(struct elsewhere *e)
{
	uint64_t until_ns = deadline_in_ms(e->turn_ms);
	bool was_ahead = false, used = false;

	give_passes(e, e->calls * e->n);
	for (;;) {
		uint32_t seen = __atomic_load_n(&e->drain->changes, __ATOMIC_SEQ_CST);
		const bool last = atomic_load(&e->all_asked), late = clock_now_ns() >= until_ns;
		const uint64_t busy = busy_here(e);

		used = __atomic_load_n(&e->drain->passes, __ATOMIC_SEQ_CST) == NO_PASSES;
		if (busy && last)
			return false;
		if (!busy && (used || late || last)) {
			__atomic_store_n(&e->drain->passes, NO_PASSES, __ATOMIC_SEQ_CST);
			if (!busy_here(e))
				break;
		} else if (busy && late) {
			was_ahead = true;
			until_ns = deadline_in_ms(e->turn_ms);
			have_some_catch_up(e, busy);
		}
		await_change(e, seen);
	}
	if (was_ahead)
		e->calls = 1;
	else if (used)
		e->calls = e->calls < CALLS_MAX ? e->calls * 2 : CALLS_MAX;
	else
		e->turn_ms = e->turn_ms < TURN_MS_MAX ? e->turn_ms * 2 : TURN_MS_MAX;
	return true;
}

/* Closing without them would take for ever where a kernel of one node waits for work that a gate of another holds back. */
static void *meet_elsewhere(void *arg)
{
	struct elsewhere *e = arg;

	e->result = 1;
	while (e->result == 1 && take_turn(e))
		e->result = e->d->elsewhere.all_idle(e->d->elsewhere.arg, &e->error);
	leave_drain(e->d, e->n);
	return NULL;
}

static int start_elsewhere(struct elsewhere *e, struct datapath *d, struct brumate_error *err)
{
	*e = (struct elsewhere){
		.d = d, .drain = d->drain, .n = d->n_agents, .calls = 1, .turn_ms = TURN_MS
	};
	if (!d->elsewhere.all_idle || !d->drain)
		return 0;
	int r = thread_start(&e->thread, meet_elsewhere, e);
	e->started = r == 0;
	return r < 0 ? brumate_fail(err, -r, "thread: %m") : 0;
}

static int end_elsewhere(struct elsewhere *e, struct brumate_error *err)
{
	if (!e->started)
		return 0;
	atomic_store(&e->all_asked, true);
	__atomic_fetch_add(&e->drain->changes, 1, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &e->drain->changes, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	pthread_join(e->thread, NULL);
	if (e->result < 0)
		*err = e->error;
	return e->result < 0 ? e->result : 0;
}

/* The process cannot be kept from exiting any more, and has device memory until it has exited. */
static int await_end(const struct datapath_agent *a, uint32_t timeout_ms, struct brumate_error *err)
{
	if (proc_wait_gone(a->agent.id, deadline_in_ms(timeout_ms)) == 0)
		return -ESHUTDOWN;
	brumate_fail(err, EBUSY, "process %d is in exit(), and has not ended within %.1f s",
		     a->agent.id.pid, timeout_ms / 1000.0);
	brumate_hint(err, "try again once it has ended");
	return -EBUSY;
}

static int gate_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	uint32_t timeout_ms = progress_left_ms(d->progress, d->lock_timeout_ms);
	size_t member = (size_t)(a - d->agents);
	int r = agents_reach(d, a, err);

	if (r == 0)
		r = agent_gate(&a->agent, timeout_ms, d->drain ? d->drain_fd : -1, member, err);
	else if (r == -ETIMEDOUT) /* no answer at all, unlike a busy program, whose agent answers */
		r = -ENOLINK;
	if (d->drain && r != -ETIMEDOUT)
		leave_drain(d, member);
	return r == -ESHUTDOWN ? await_end(a, timeout_ms, err) : r;
}

/* Returns 0 if all were asked; each agent keeps its own result. */
static int gate_agents(struct datapath *d, struct brumate_error *err)
{
	struct elsewhere e;
	int r = make_drain(d, err);

	if (r == 0 && (r = start_elsewhere(&e, d, err)) == 0) {
		agents_ask(d, gate_agent, NULL);
		r = end_elsewhere(&e, err);
	}
	drop_drain(d);
	return r;
}

static bool have_succeeded(const struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].result < 0)
			return false;
	return true;
}

/* Memory that the library cannot take apart is not restored by the driver either: docs/driver-behaviour.md. */
static bool would_lose(const struct datapath *d, const struct datapath_agent *a)
{
	return a->result == -EOPNOTSUPP && !d->force;
}

static int refuse_gate(const struct datapath_agent *a, struct brumate_error *err)
{
	*err = a->error;
	if (a->result == -EREMOTEIO)
		brumate_hint(err, "the driver would not bring it back as it is; the program can "
				  "end, or reset "
				  "the device");
	else if (a->result == -ETIMEDOUT)
		brumate_hint(
			err,
			"a kernel or host callback that runs long holds the GPU; try again with a "
			"longer --timeout");
	else if (a->result == -EOPNOTSUPP)
		brumate_hint(err, "the driver would lose memory that is shared; --force tries it");
	else if (is_our_lack(a->result))
		brumate_hint(err, "try again");
	return a->result;
}

/* The sharing began after the agents were found: otherwise the operation had been refused earlier. */
static int refuse_shared(const struct datapath_agent *a, struct brumate_error *err)
{
	brumate_fail(err, EOPNOTSUPP, "process %d shares %s", a->agent.id.pid, a->agent.shares);
	brumate_hint(err, "the driver would lose what is shared; --force tries it");
	return -EOPNOTSUPP;
}

static bool is_refused(const struct datapath *d, const struct datapath_agent *a)
{
	return a->result == -ETIMEDOUT || a->result == -EBUSY || a->result == -EREMOTEIO ||
	       is_our_lack(a->result) || would_lose(d, a);
}

static int open_agent_dir(const struct datapath *d)
{
	return d->agent_dir ? agent_dir_open(d->agent_dir) : -ENOMEM;
}

static int make_hold_file(int dir_fd)
{
	auto_close int fd = openat(dir_fd, AGENT_HOLD_FILE,
				   O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);

	return fd >= 0 || errno == EEXIST ? 0 : -errno;
}

/* If our user has no number in the user namespace of the file system, we cannot create files there, but the
 * directory's owner can. */
static int make_hold_file_as_owner(int dir_fd, struct brumate_error *err)
{
	auto_(user_files_leave) struct user_files user = USER_FILES_NONE;
	struct stat st;

	if (fstat(dir_fd, &st) < 0)
		return -errno;
	int r = user_files_enter(&user, st.st_uid, st.st_gid, err);
	return r < 0 ? r : make_hold_file(dir_fd);
}

int park_hold(struct datapath *d, struct brumate_error *err)
{
	auto_close int dir_fd = open_agent_dir(d);

	if (dir_fd == -ENOENT)
		return 0;
	if (dir_fd < 0)
		return brumate_fail(err, -dir_fd, "%s: %m", d->agent_dir ? d->agent_dir : "agents");
	int r = make_hold_file(dir_fd);
	if (r == -EOVERFLOW)
		r = make_hold_file_as_owner(dir_fd, err);
	return r < 0 ? brumate_fail(err, -r, "%s/%s: %m", d->agent_dir, AGENT_HOLD_FILE) : 0;
}

/* Processes whose agents listen but are not among the known agents. */
struct newcomers {
	struct datapath *d;
	struct proc_id *ids;
	size_t n;
};

/* An agent that has no socket yet checks for the hold file next, and then opens its gate by itself. */
static int let_in(void *arg, size_t i, const struct worker *me, struct brumate_error *err)
{
	const struct newcomers *all = arg;
	struct datapath *d = all->d;
	struct proc_id id = all->ids[i];
	auto_(agent_close) struct agent a = AGENT_EMPTY;
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = agent_open(&a, d->agent_dir, id, &why);

	if (r == 0 && a.gate == AGENT_GATE_CLOSED)
		r = agent_open_gate(&a, &why);
	if (r < 0 && r != -ENOENT && !proc_has_ended(id))
		log_warn("a process that began to use the GPU may still be blocked: job=%s "
			 "pid=%d reason=\"%s\"",
			 d->target->id, id.pid, why.text);
	agent_detach(&a);
	(void)me;
	(void)err;
	return 0; /* a failure does not keep the others from being let in */
}

static void note_newcomer(struct newcomers *all, const struct proc_info *p)
{
	struct proc_id *ids =
		may_listen(all->d, p) ? array_room(all->ids, all->n, sizeof(*ids)) : NULL;

	if (!ids)
		return;
	all->ids = ids;
	all->ids[all->n++] = p->id;
}

static bool has_inner_pid(const struct proc_tree *tree, pid_t inner_pid)
{
	for (size_t i = 0; i < tree->n; i++)
		if (tree->items[i].inner_pid == inner_pid)
			return true;
	return false;
}

/* A process that `runc exec` or the like begins in a container is outside the tree, but its agent has a socket in the
 * same directory. */
static void note_from_elsewhere(struct newcomers *all, const struct proc_tree *tree, int dir_fd)
{
	auto_closedir DIR *dir = dir_open(dir_fd, ".");
	struct dirent *e;
	struct proc_info info;

	while (dir && dir_next(dir, &e) > 0) {
		const pid_t inner = atoi(e->d_name);
		const pid_t pid = inner > 0 && !has_inner_pid(tree, inner)
					  ? pidns_translate(all->d->target->root.pid, inner)
					  : 0;

		if (pid > 0 && proc_read(&info, pid, NULL) == 0)
			note_newcomer(all, &info);
	}
}

static void open_newcomers(struct datapath *d, int dir_fd)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	struct newcomers all = { .d = d };

	if (proc_tree_read(&tree, d->target->root, NULL) < 0)
		return;
	for (size_t i = 0; i < tree.n; i++)
		note_newcomer(&all, &tree.items[i]);
	note_from_elsewhere(&all, &tree, dir_fd);
	/* In parallel, so that agents that do not answer are not waited for one after the other. */
	const struct workers_items items = {
		.n = all.n,
		.threads = (unsigned)(all.n < LET_IN_THREADS ? all.n : LET_IN_THREADS),
		.fn = let_in,
		.arg = &all,
	};
	if (all.n)
		workers_run(&items, NULL);
	free(all.ids);
}

void park_let_in(struct datapath *d)
{
	auto_close int dir_fd = open_agent_dir(d);

	if (dir_fd >= 0 && unlinkat(dir_fd, AGENT_HOLD_FILE, 0) == 0)
		open_newcomers(d, dir_fd);
}

void park_let_in_late(struct datapath *d)
{
	auto_close int dir_fd = open_agent_dir(d);

	if (dir_fd >= 0)
		open_newcomers(d, dir_fd);
}

/* Processes that were being initialised may be known to the driver once their gates are closed. */
static bool any_starting(const struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].is_new || d->agents[i].agent.sharing & AGENT_IS_STARTING)
			return true;
	return false;
}

int park_gate(struct datapath *d, struct brumate_error *err)
{
	size_t n = d->n_agents;

	d->has_changed = any_starting(d);
	int r = gate_agents(d, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < d->n_agents; i++) {
		const struct datapath_agent *a = &d->agents[i];

		if (is_refused(d, a))
			return refuse_gate(a, err);
		if (d->n_agents > 1 && a->agent.sharing & AGENT_SHARES && !d->force)
			return refuse_shared(a, err);
	}
	agents_keep(d, has_answered, d->progress);
	d->has_changed |= d->n_agents < n;
	r = share_check(d, err);
	return r < 0 ? r : d->n_agents ? 0 : 1;
}

/* ---- park ---- */

/* An imported piece cannot be exported again: its fd is the one that the vault kept (wire/agent.h, OWN). */
static int take_vault_fd(struct datapath *d, struct datapath_agent *a, size_t i,
			 struct brumate_error *err)
{
	size_t first, n = vault_find(d->vault, a->agent.id, &first);

	for (size_t k = first; k < first + n; k++)
		if (d->vault->pieces[k].id == a->pieces[i].id && d->vault->pieces[k].fd >= 0) {
			a->fds[i] = dup(d->vault->pieces[k].fd);
			return a->fds[i] < 0 ? brumate_fail(err, errno, "%m") : 0;
		}
	return brumate_fail(err, EOPNOTSUPP, "process %d: memory at %#llx is of another process",
			    a->agent.id.pid, (unsigned long long)a->pieces[i].va);
}

/* The pieces of an agent that are being exported. */
struct exporting {
	struct datapath *d;
	struct datapath_agent *agent;
	size_t first; /* index of the agent's first piece among all pieces */
	size_t *at;   /* index of each piece among all pieces; imported pieces come first */
	int *fds;
	size_t n_there, n_imported;
};

static void exporting_fini(struct exporting *e)
{
	free(e->at);
	free(e->fds);
}
DEFINE_AUTO_FINI(struct exporting, exporting_fini)

static void note_exported(void *arg, size_t n)
{
	struct exporting *e = arg;
	const size_t n_there = e->n_imported + n, had = e->n_there;

	for (size_t i = had; i < n_there; i++)
		e->agent->fds[e->at[i] - e->first] = e->fds[i];
	e->n_there = n_there;
	move_give(e->d, e->at + had, e->fds + had, n_there - had);
}

/* Gets the fds of listed pieces. -ENOENT: the gate is open, and a piece was freed after the listing. */
static int export_listed(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	const size_t first = agents_count_pieces(d, (size_t)(a - d->agents));
	auto_(exporting_fini) struct exporting e = { d, a, first };
	auto_free uint64_t *ids = calloc(a->n_pieces + 1, sizeof(*ids));
	size_t n = 0;

	e.at = calloc(a->n_pieces + 1, sizeof(*e.at));
	e.fds = calloc(a->n_pieces + 1, sizeof(*e.fds));
	if (!ids || !e.at || !e.fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < a->n_pieces; i++) {
		if (a->fds[i] < 0)
			continue;
		e.at[e.n_imported] = e.first + i;
		e.fds[e.n_imported++] = a->fds[i];
	}
	for (size_t i = 0; i < a->n_pieces; i++) {
		if (a->fds[i] >= 0)
			continue;
		e.at[e.n_imported + n] = e.first + i;
		ids[n++] = a->pieces[i].id;
	}
	note_exported(&e, 0);
	int r = agent_check_descriptors(&a->agent, n, err);
	return r < 0 ? r
		     : agent_export_and_tell(&a->agent, ids, n, e.fds + e.n_imported, note_exported,
					     &e, err);
}

/* Lists the pieces of a connected agent. */
static int list_pieces(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	int r = agents_list(d, a, err);

	if (r < 0)
		return r;
	a->fds = calloc(a->n_pieces + 1, sizeof(int));
	if (!a->fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < a->n_pieces; i++)
		a->fds[i] = -1;
	for (size_t i = 0; r == 0 && i < a->n_pieces; i++)
		if (a->pieces[i].flags & AGENT_PIECE_IMPORTED)
			r = take_vault_fd(d, a, i, err);
	return r;
}

static int export_pieces(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	int r = list_pieces(d, a, err);

	return r < 0 ? r : export_listed(d, a, err);
}

static int export_running(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	int r = agents_reach(d, a, err);

	/* A piece may be freed between the listing and the export. */
	for (int tries = 0; r == 0 && tries < EXPORT_TRIES; tries++) {
		r = export_pieces(d, a, err);
		if (r != -ENOENT)
			break;
		r = tries + 1 < EXPORT_TRIES ? 0 : r;
	}
	return r;
}

int park_borrow(struct datapath *d, struct brumate_error *err)
{
	int r = agents_ask(d, export_running, err);

	park_detach(d); /* other processes of the program may need their agents */
	return r;
}

/* 0 if the process has ended before its memory was written. */
static pid_t find_inner_pid(struct proc_id id)
{
	struct proc_info info;

	return proc_read(&info, id.pid, NULL) == 0 && proc_is_same(info.id, id) ? info.inner_pid
										: 0;
}

/* Replaces the content of the vault by what the agents exported, and by copies of memory whose owner has ended. */
static int fill_vault(struct datapath *d, struct brumate_error *err)
{
	auto_free struct vault_piece *orphans = NULL;
	struct vault *v = d->vault;
	size_t n_orphans = 0;
	int r = share_copy_orphans(d, &orphans, &n_orphans, err);

	if (r < 0)
		return r;
	const size_t n = agents_count_pieces(d, d->n_agents);
	struct vault_piece *all = calloc(n + n_orphans + 1, sizeof(*all));
	for (size_t i = 0; !all && i < n_orphans; i++)
		cleanup_close(&orphans[i].fd);
	if (!all)
		return brumate_fail(err, ENOMEM, "%m");
	vault_release(v, d->target);
	v->pieces = all;
	for (size_t i = 0; i < d->n_agents; i++) {
		struct datapath_agent *a = &d->agents[i];
		pid_t inner_pid = find_inner_pid(a->agent.id);

		for (size_t k = 0; k < a->n_pieces; k++) {
			all[v->n_pieces] = vault_piece_of(a->agent.id, &a->pieces[k]);
			all[v->n_pieces].token = a->token;
			all[v->n_pieces].inner_pid = inner_pid;
			all[v->n_pieces++].fd = take_fd(&a->fds[k]);
		}
	}
	for (size_t i = 0; i < n_orphans; i++)
		all[v->n_pieces++] = orphans[i];
	return 0;
}

/* Starts copying the first pieces while others are still being exported: no process writes to them any more. */
static int export_all(struct datapath *d, bool copies, struct brumate_error *err)
{
	int r = agents_ask(d, list_pieces, err);

	if (r < 0)
		return r;
	if (copies && !share_is_used(d)) /* with aliases, copies of orphans may have to be added */
		move_start_ahead(d);
	r = agents_ask_all(d, export_listed, err);
	if (!have_succeeded(d)) /* its fds are closed with the failed agents */
		move_stop(d);
	return r < 0 ? r : agents_settle(d, err);
}

static int take(struct datapath *d, bool copies, struct brumate_error *err)
{
	uint64_t start_ns = clock_now_ns();
	int r = export_all(d, copies, err);

	if (r == 0)
		r = fill_vault(d, err);
	if (r == 0)
		r = share_check_parked(d, err);
	if (r < 0 || !d->vault->n_pieces)
		return r;
	progress_phase(d->progress, "export", start_ns);
	start_ns = clock_now_ns();
	if ((r = vault_guard(d->vault, d->target, err)) < 0 ||
	    (r = vault_save(d->vault, d->target, err)) < 0)
		return r;
	progress_phase(d->progress, "hold", start_ns);
	d->sums.bytes = vault_bytes(d->vault);
	return 0;
}

int park_take(struct datapath *d, bool copies, struct brumate_error *err)
{
	int r = take(d, copies, err);

	if (r < 0)
		move_stop(d);
	return r;
}

static int unmap_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	(void)d;
	return a->n_pieces || share_uses_others(a) ? agent_unmap(&a->agent, err) : 0;
}

int park_unmap(struct datapath *d, struct brumate_error *err)
{
	return agents_ask(d, unmap_agent, err);
}

/* ---- early map ---- */

/* Unmaps everything. An agent that has all of its memory is left alone. */
static int empty_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	int r = agents_reach(d, a, err);

	return r == 0 && a->agent.gate == AGENT_GATE_UNMAPPED ? agent_unmap(&a->agent, err) : r;
}

/* One agent's part of the vault's pieces, and how many of them are mapped. */
struct early_map {
	struct datapath_agent *agent;
	uint64_t *ids;
	size_t first, n, n_mapped;
	bool owns; /* mapped pieces become the process's own at once */
};

static uint64_t bytes_on(const struct vault *v, const char *gpu)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < v->n_pieces; i++)
		sum += strcmp(v->pieces[i].gpu, gpu) ? 0 : v->pieces[i].len_bytes;
	return sum;
}

/* Whether 1/@part of the GPU is free on every GPU where the vault still holds memory. With @once_more: whether that
 * is free in addition to a second copy of the job's memory, on every GPU where the job has some. */
static bool gpus_have_room(const struct datapath *d, unsigned part, bool once_more)
{
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	auto_free struct dev_gpu *gpus = calloc(DEV_GPUS_MAX, sizeof(*gpus));
	size_t n = 0;

	if (!gpus || broker_client_open(&broker, &d->target->gpu_kind, NULL) < 0 ||
	    broker_client_gpus(&broker, gpus, &n, NULL) < 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		const uint64_t total = gpus[i].total_bytes;
		const uint64_t bytes = once_more ? bytes_on(d->vault, gpus[i].uuid)
						 : vault_device_bytes(d->vault, gpus[i].uuid);

		if (bytes && gpus[i].used_bytes + (once_more ? bytes : 0) + total / part > total)
			return false;
	}
	return true;
}

/* Whether other programs are not short of memory while the job's memory exists twice. Its first copy exists already.
 * If GPUs change or memory is shared, owning is left to the end. */
static bool has_room_for_both(const struct datapath *d)
{
	return !d->n_pairs && !share_is_used(d) && gpus_have_room(d, OTHERS_PART, true);
}

static int map_filled(struct early_map *m, const int *fds, size_t end, struct brumate_error *err)
{
	int r = agent_map(&m->agent->agent, m->ids + m->n_mapped, fds + m->first + m->n_mapped,
			  end - m->n_mapped, err);

	if (r < 0)
		return r;
	m->n_mapped = end;
	r = fault_point("ahead.mapped");
	if (r < 0)
		return brumate_fail(err, -r, "injected: %m");
	if (!m->owns)
		return 0;
	if ((r = agent_own_ahead(&m->agent->agent, err)) < 0)
		return r;
	r = fault_point("ahead.owned");
	return r < 0 ? brumate_fail(err, -r, "injected: %m") : 0;
}

/* Waits for the end of the transfer even if nothing is left to map: only then it is known that the mapped pieces are
 * valid. */
static int follow_transfer(struct datapath *d, struct early_map *m, struct brumate_error *err)
{
	size_t filled = 0;
	const int *fds;
	int r = 0;

	while ((filled = move_wait_filled(d, filled, &fds))) {
		size_t end = filled > m->first ? filled - m->first : 0;

		end = end < m->n ? end : m->n - 1;
		if (!m->n_mapped)
			m->owns = has_room_for_both(d);
		if (r == 0 && end > m->n_mapped)
			r = map_filled(m, fds, end, err);
	}
	return r;
}

static int map_agent_early(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	struct early_map m = { .agent = a };

	m.n = vault_find(d->vault, a->agent.id, &m.first);
	auto_free uint64_t *ids = calloc(m.n + 1, sizeof(*ids));
	if (!ids)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < m.n; i++)
		ids[i] = d->vault->pieces[m.first + i].id;
	m.ids = ids;
	int r = empty_agent(d, a, err);
	if (r == 0 && m.n && a->agent.gate == AGENT_GATE_UNMAPPED)
		r = follow_transfer(d, &m, err);
	if (m.n_mapped && move_is_void(d))
		r = empty_agent(d, a, err);
	return r;
}

void park_map_early(struct datapath *d)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!d->n_agents || !move_begin_early(d))
		return;
	int r = agents_ask(d, map_agent_early, &why);
	d->maps.early = r == 0 && !move_is_void(d);
	move_end_early(d);
	if (r < 0)
		log_info("device memory is mapped at the end: job=%s reason=\"%s\"", d->target->id,
			 why.text);
}

/* ---- back ---- */

static int map_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	size_t first, n = vault_find(d->vault, a->agent.id, &first);
	auto_free uint64_t *ids = calloc(n + 1, sizeof(*ids));
	auto_free int *fds = calloc(n + 1, sizeof(*fds));
	int r = agents_reach(d, a, err);

	if (!ids || !fds)
		return brumate_fail(err, ENOMEM, "%m");
	if (r < 0 || a->agent.gate != AGENT_GATE_UNMAPPED)
		return r;
	for (size_t i = 0; i < n; i++) {
		ids[i] = d->vault->pieces[first + i].id;
		fds[i] = d->vault->pieces[first + i].fd;
	}
	return agent_map(&a->agent, ids, fds, n, err);
}

/* Lists the pieces that stay imported: the vault keeps their fds for the next time. */
static int own_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	size_t imported = 0;

	if (a->agent.gate == AGENT_GATE_OPEN)
		return 0; /* the driver has restored its memory */
	int r = agent_own(&a->agent, d->maps.aliases_hidden, &imported, err);
	if (r == 0 && imported)
		return agents_list(d, a, err);
	if (r == 0)
		datapath_agent_fini(a);
	return r;
}

static int compare_id(const void *key, const void *item)
{
	const uint64_t *id = key;
	const struct agent_piece *piece = item;

	return *id < piece->id ? -1 : *id > piece->id;
}

/* Called for all pieces each time that part of a snapshot is released. */
static bool is_imported(const struct datapath *d, const struct vault_piece *p)
{
	for (size_t i = 0; i < d->n_agents; i++) {
		const struct datapath_agent *a = &d->agents[i];

		if (a->agent.id.pid != p->process.pid || !a->n_pieces)
			continue;
		const struct agent_piece *piece =
			bsearch(&p->id, a->pieces, a->n_pieces, sizeof(*piece), compare_id);
		if (piece && piece->flags & AGENT_PIECE_IMPORTED)
			return true;
	}
	return false;
}

/* The pieces that the vault may release. */
struct releasable {
	struct datapath *d;
	size_t n_copied; /* of the first pieces; the others are still the snapshot */
};

static bool is_spare(void *arg, const struct vault_piece *p)
{
	const struct releasable *s = arg;

	return (size_t)(p - s->d->vault->pieces) < s->n_copied && !is_imported(s->d, p) &&
	       !share_is_orphan(s->d, p);
}

/* Releases what is_spare() allows. During a snapshot, first waits until more of it is copied or some time has passed. */
static void drop_spare(struct releasable *s)
{
	struct datapath *d = s->d;

	if (s->n_copied < d->vault->n_pieces)
		s->n_copied = move_is_on(d) ? move_wait_copied(d, s->n_copied, TELL_EVERY_MS)
					    : d->vault->n_pieces;
	vault_drop_pieces(d->vault, is_spare, s);
}

/* A snapshot leaves room on every GPU for the program, and for allocations of the driver. */
static void leave_reserve(struct releasable *s)
{
	while (move_is_on(s->d) && s->n_copied < s->d->vault->n_pieces &&
	       !gpus_have_room(s->d, RESERVE_PART, false))
		drop_spare(s);
}

/* Counts pieces that are only imported by their process, or are given to others straight from the vault. They are the
 * process's own once they are copied. */
static size_t count_kept(const struct datapath *d)
{
	size_t n = agents_count_imported(d);

	for (size_t i = 0; i < d->vault->n_pieces; i++)
		n += share_is_orphan(d, &d->vault->pieces[i]);
	return n;
}

/* Each copy needs room in addition to what it replaces, and the vault's fds keep the replaced memory allocated.
 * Releasing them makes room for further copies, so repeat until no piece is left or no progress is made. */
static int own_pieces(struct datapath *d, struct brumate_error *err)
{
	struct releasable spare = { .d = d };
	size_t before = SIZE_MAX;

	for (;;) {
		int r = agents_ask(d, own_agent, err);
		bool all_copied = spare.n_copied == d->vault->n_pieces;
		size_t n = count_kept(d);

		if (r == 0 && !n)
			leave_reserve(&spare);
		if (r < 0 || !n)
			return r;
		drop_spare(&spare);
		if (all_copied && n >= before)
			return 0;
		if (move_is_on(d) && (r = fault_point("own.waited")) < 0)
			return brumate_fail(err, -r, "injected at own.waited: %m");
		before = n;
	}
}

/* A piece must not be mapped elsewhere while it is replaced by a copy; after that the aliases are mapped from the
 * copy. */
static int own_and_share(struct datapath *d, struct brumate_error *err)
{
	int r = share_hide(d, err);

	if (r < 0 || (r = own_pieces(d, err)) < 0)
		return r;
	r = fault_point("share.owned");
	return r < 0 ? brumate_fail(err, -r, "injected: %m") : share_bring(d, err);
}

int park_map(struct datapath *d, struct brumate_error *err)
{
	int r = d->maps.early ? 0 : agents_ask(d, empty_agent, err);

	if (r == 0)
		r = agents_ask(d, map_agent, err);
	if (r < 0)
		return r;
	uint64_t start_ns = clock_now_ns();
	r = own_and_share(d, err);
	progress_phase(d->progress, "own", start_ns);
	return r;
}

/* ---- snapshot ---- */

static struct agent_room *find_held(struct datapath *d, const uint8_t *gpu)
{
	for (size_t i = 0; i < d->n_held; i++)
		if (!memcmp(d->held[i].gpu, gpu, AGENT_UUID_BYTES))
			return &d->held[i];
	if (d->n_held == AGENT_SNAPSHOT_GPUS_MAX)
		return NULL;
	memcpy(d->held[d->n_held].gpu, gpu, AGENT_UUID_BYTES);
	d->held[d->n_held].bytes = 0;
	return &d->held[d->n_held++];
}

/* Sums per GPU the memory that the vault holds in addition to the program's own. */
static void sum_held(struct datapath *d)
{
	const struct vault *v = d->vault;
	uint8_t gpu[AGENT_UUID_BYTES];

	d->n_held = 0;
	for (size_t i = 0; i < v->n_pieces; i++) {
		const struct vault_piece *p = &v->pieces[i];

		if (p->fd < 0 || is_imported(d, p) || dev_uuid_parse(gpu, p->gpu) < 0)
			continue;
		struct agent_room *held = find_held(d, gpu);
		if (held)
			held->bytes += p->len_bytes;
	}
}

/* A stopped process would not answer, and does not wait for memory. */
static bool is_stopped(struct proc_id id)
{
	struct proc_info info;

	return proc_read(&info, id.pid, NULL) < 0 || info.state == 'T' || info.state == 't';
}

static int tell_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	if (a->is_deaf || is_stopped(a->agent.id))
		return 0;
	int r = agents_reach(d, a, err);
	if (r == 0)
		r = agent_tell_snapshot(&a->agent, d->held, d->n_held, err);
	a->is_deaf = r < 0;
	return r;
}

/* An agent that does not get the message checks for free memory by itself. */
static void tell_agents(struct datapath *d)
{
	sum_held(d);
	agents_ask(d, tell_agent, NULL);
	park_detach(d);
}

/* Nothing is held here any more, but a broker whose client died may take a moment to notice and to release its
 * memory. */
static void tell_agents_soon(struct datapath *d)
{
	d->n_held = 1;
	d->held[0] = (struct agent_room){ .bytes = 0 };
	agents_ask(d, tell_agent, NULL);
	park_detach(d);
}

/* Agents that believe that a snapshot is held, by us or by a predecessor, and were not informed of its release. */
static bool any_told(const struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].agent.sharing & AGENT_HAS_SNAPSHOT)
			return true;
	return false;
}

static int open_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	int r = agents_reach(d, a, err);

	if (r < 0 || a->agent.gate == AGENT_GATE_OPEN)
		return r;
	/* Before the gate opens, since the program may allocate memory at once. */
	if (d->n_held)
		agent_tell_snapshot(&a->agent, d->held, d->n_held, NULL);
	return agent_open_gate(&a->agent, err);
}

/* Writes the table of the baseline, so that the next shim finds it. */
static void save_baseline(struct datapath *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (vault_baseline_bytes(d->vault) && vault_save(d->vault, d->target, &err) < 0)
		log_warn("the kept host copy is lost if the shim ends: job=%s reason=\"%s\"",
			 d->target->id, err.text);
}

/* Whether the host copy becomes the baseline. If nobody asked for that, it does if it is worth it, and leaves to others at
 * least as much memory as it takes. */
static bool keeps_copy(const struct datapath *d)
{
	const uint64_t bytes =
		d->keep.spare && !d->keep.copy ? host_copy_memory_bytes(&d->vault->copy) : 0;

	return d->keep.copy || (bytes >= SPARE_BYTES_MIN && machine_room_bytes() >= bytes);
}

static void release_copy(struct datapath *d)
{
	struct vault *v = d->vault;
	struct host_copy *saved = d->sink.save ? &d->saved : NULL;

	if (d->keep.drop || d->keep.live)
		vault_drop_baseline(v);
	if (!v->copied || !keeps_copy(d)) {
		vault_release_copy(v, saved);
		return;
	}
	if (vault_make_baseline(v, saved)) {
		v->baseline.spare = !d->keep.copy;
		return;
	}
	if (d->keep.copy)
		progress_note(d->progress,
			      "the host copy is not kept: it has no digests, or lies on a disk");
	vault_release_copy(v, saved);
}

/* Releases all but the pieces that their process only imports. */
static void release_vault(struct datapath *d)
{
	struct vault *v = d->vault;
	struct vault rest = VAULT_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	release_copy(d);
	rest.pieces = calloc(v->n_pieces + 1, sizeof(*rest.pieces));
	for (size_t i = 0; rest.pieces && i < v->n_pieces; i++)
		if (v->pieces[i].fd >= 0 && is_imported(d, &v->pieces[i])) {
			rest.pieces[rest.n_pieces] = v->pieces[i];
			rest.pieces[rest.n_pieces++].fd = take_fd(&v->pieces[i].fd);
		}
	if (!rest.n_pieces) {
		vault_fini(&rest);
		vault_release(v, d->target);
		save_baseline(d);
		return;
	}
	rest.baseline = v->baseline;
	v->baseline = (struct vault_baseline){ 0 };
	vault_release(v, d->target);
	rest.keeper = v->keeper;
	*v = rest;
	if (vault_guard(v, d->target, &err) < 0 || vault_save(v, d->target, &err) < 0)
		log_warn("imported memory is held by the shim alone: job=%s reason=\"%s\"",
			 d->target->id, err.text);
}

int park_open(struct datapath *d, struct brumate_error *err)
{
	const bool drains = move_is_on(d);

	d->n_held = 0;
	if (drains)
		sum_held(d);
	int r = agents_ask(d, open_agent, err);
	if (r < 0)
		return r;
	d->progress->released_ns = clock_now_ns();
	park_detach(d);
	park_let_in(d);
	if (drains) /* the vault still holds the snapshot */
		return 0;
	release_vault(d);
	if (any_told(d))
		tell_agents_soon(d);
	return 0;
}

/* Gives the host copy to the keeper if it is to be kept. */
static void keep_drained(struct datapath *d)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!(d->keep.copy || d->keep.spare) || vault_guard(d->vault, d->target, &why) == 0)
		return;
	if (d->keep.copy)
		progress_note(d->progress, "the host copy is not kept: %s", why.text);
	d->keep.copy = d->keep.spare = false;
}

int park_drain(struct datapath *d, struct brumate_error *err)
{
	struct releasable spare = { .d = d };
	int r;

	if (!move_is_on(d))
		return 1;
	move_measure(d);
	move_drain(d);
	while (spare.n_copied < d->vault->n_pieces) {
		drop_spare(&spare);
		tell_agents(d);
		if ((r = fault_point("drain.let-go")) < 0)
			return brumate_fail(err, -r, "injected at drain.let-go: %m");
	}
	r = move_wait(d, err);
	if (r == 0 && (r = fault_point("drain.copied")) < 0)
		brumate_fail(err, -r, "injected at drain.copied: %m");
	if (r < 0)
		return r;
	keep_drained(d);
	release_vault(d);
	return 0;
}

/* ---- from whatever state ---- */

static int look_at_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	/* After a failed request, requests and replies of a connection may be out of step. A fresh connection shows
	 * the true state. */
	agent_detach(&a->agent);
	int r = agents_reach(d, a, err);
	return r < 0 ? r : agents_list(d, a, err);
}

int park_look(struct datapath *d, struct brumate_error *err)
{
	return agents_ask(d, look_at_agent, err);
}

static bool any_unmapped(const struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].agent.gate == AGENT_GATE_UNMAPPED)
			return true;
	return false;
}

/* Memory that was mapped again but is not yet the process's own becomes its own behind a closed gate. If the program
 * is too busy for that, the memory stays imported, and the vault keeps its fds. */
static int prepare_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	bool imported = false;

	if (a->agent.gate == AGENT_GATE_UNMAPPED)
		return map_agent(d, a, err);
	for (size_t i = 0; i < a->n_pieces; i++)
		imported = imported || a->pieces[i].flags & AGENT_PIECE_IMPORTED;
	if (imported && a->agent.gate == AGENT_GATE_OPEN)
		agent_gate(&a->agent, d->lock_timeout_ms, -1, 0, NULL);
	return 0;
}

/* Memory that others have mapped is replaced only while they do not run. */
static int map_and_own(struct datapath *d, struct brumate_error *err)
{
	int r = share_is_used(d) && (any_unmapped(d) || agents_count_imported(d))
			? gate_agents(d, err)
			: 0;

	if (r == 0)
		r = agents_ask(d, prepare_agent, err);
	return r < 0 ? r : own_and_share(d, err);
}

/* Opens the gate of a member that answers and either has its memory or can get it back at once. */
static int release_agent(struct datapath *d, struct datapath_agent *a, struct brumate_error *err)
{
	int r = 0;

	if (a->agent.fd < 0 || a->agent.gate == AGENT_GATE_OPEN)
		return 0;
	if (a->agent.gate == AGENT_GATE_UNMAPPED)
		r = vault_has_device(d->vault) ? map_agent(d, a, err) : -ENODATA;
	if (r == 0)
		r = own_agent(d, a, err);
	return r < 0 ? r : agent_open_gate(&a->agent, err);
}

/* A member that does not answer does not hold back others that share nothing with it. The vault stays as it is: a
 * later park_return() finds these members running. */
static void release_others(struct datapath *d)
{
	if (!share_is_used(d))
		agents_ask(d, release_agent, NULL);
}

static int return_all(struct datapath *d, struct brumate_error *err)
{
	int r;

	if ((r = park_check(d, err)) < 0 || (r = park_look(d, err)) < 0)
		return r;
	/* Pieces mapped early, from a transfer that was not complete, may have wrong contents. */
	if (any_unmapped(d) && !vault_has_device(d->vault) &&
	    (r = agents_ask(d, empty_agent, err)) == 0)
		r = move_back(d, err);
	if (r == 0)
		r = map_and_own(d, err);
	return r < 0 || !d->n_agents ? r : park_open(d, err);
}

int park_return(struct datapath *d, struct brumate_error *err)
{
	int r = return_all(d, err);

	if (r < 0)
		release_others(d);
	return r;
}

/* Whether the program may have run since its memory was put back: then the vault's is out of date. */
static bool any_open(const struct datapath *d)
{
	for (size_t i = 0; i < d->n_agents; i++)
		if (d->agents[i].agent.gate == AGENT_GATE_OPEN &&
		    (d->agents[i].n_pieces || share_uses_others(&d->agents[i])))
			return true;
	return false;
}

int park_take_back(struct datapath *d, struct brumate_error *err)
{
	struct vault *v = d->vault;
	int r = park_look(d, err);

	if (r < 0)
		return r;
	if (!any_open(d) && (v->copied || vault_has_device(v))) {
		r = park_unmap(d, err);
		if (v->copied)
			vault_drop_device(v);
		return r < 0 ? r : 1;
	}
	if (any_unmapped(d) && !vault_has_device(v))
		r = move_back(d, err);
	return r < 0 ? r : map_and_own(d, err);
}

void park_discard(struct datapath *d)
{
	if (gate_agents(d, NULL) == 0 && have_succeeded(d) && park_look(d, NULL) == 0)
		park_unmap(d, NULL);
	park_detach(d);
}
