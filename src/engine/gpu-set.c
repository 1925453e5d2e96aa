// SPDX-License-Identifier: MIT
/* The processes with GPU state. See gpu-set.h. */
#include "engine/gpu-set.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "process/scan.h"

enum { REOPEN_TRIES = 3, STATE_TRIES = 4, END_TIMEOUT_MS = 2000 };

void gpu_set_fini(struct gpu_set *s)
{
	if (s->broker_is_open)
		broker_client_close(&s->broker);
	s->broker_is_open = false;
	free(s->items);
	free(s->pairs);
	s->items = NULL;
	s->pairs = NULL;
	s->n = s->n_pairs = 0;
}

int gpu_set_open(struct gpu_set *s, struct brumate_error *err)
{
	if (s->broker_is_open)
		return 0;

	struct gpu_kind kind = s->target->gpu_kind;

	snprintf(kind.vendor, sizeof(kind.vendor), "%s", s->vendor->id);
	int r = broker_client_open(&s->broker, &kind, err);
	if (r < 0)
		return r;
	s->broker_is_open = true;
	fault_register_peer("broker", broker_client_pid(&s->broker));
	return 0;
}

static int reopen_broker(struct gpu_set *s, struct brumate_error *err)
{
	log_warn("the broker is gone, starting another: job=%s", s->target->id);
	int r = broker_client_reopen(&s->broker, err);

	if (r == 0)
		fault_register_peer("broker", broker_client_pid(&s->broker));
	return r;
}

/* The broker of another one, if it was asked before, is left. */
static void leave_vendor(struct gpu_set *s, const struct gpu_vendor *vendor)
{
	if (s->broker_is_open && vendor != s->vendor) {
		broker_client_close(&s->broker);
		s->broker_is_open = false;
	}
	s->vendor = vendor;
}

int gpu_set_take_vendor(struct gpu_set *s, const char *id, struct brumate_error *err)
{
	const struct gpu_vendor *vendor = *id ? gpu_vendor_find(id) : gpu_vendors[0];

	if (!vendor) {
		brumate_fail(err, EOPNOTSUPP,
			     "its GPUs are of \"%s\", which this brumate does not know", id);
		brumate_hint(err, "install the version of brumate that saved it, or a newer one");
		return -EOPNOTSUPP;
	}
	leave_vendor(s, vendor);
	return 0;
}

/* ---- finding ---- */

/* Those of the set that an action is for. */
struct selection {
	struct gpu_process **items;
	size_t n;
};

static void selection_fini(struct selection *l)
{
	free(l->items);
}
DEFINE_AUTO_FINI(struct selection, selection_fini)

/* Selects those whose state is @state, or all of them where that is DEV_STATE__MAX. */
static int select_processes(struct selection *ret, struct gpu_set *s, enum dev_state state,
			    struct brumate_error *err)
{
	*ret = (struct selection){ .items = calloc(s->n + 1, sizeof(*ret->items)) };
	if (!ret->items)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < s->n; i++)
		if (state == DEV_STATE__MAX || s->items[i].dev.state == state)
			ret->items[ret->n++] = &s->items[i];
	return 0;
}

static int ask_once(struct gpu_set *s, const struct selection *l, struct brumate_error *err)
{
	auto_free pid_t *pids = calloc(l->n + 1, sizeof(*pids));
	auto_free struct dev_process *dev = calloc(l->n + 1, sizeof(*dev));
	int r = -EPIPE;

	if (!pids || !dev)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < l->n; i++)
		pids[i] = l->items[i]->id.pid;
	for (int tries = 0; r == -EPIPE && tries < REOPEN_TRIES; tries++) {
		if (tries && (r = reopen_broker(s, err)) < 0)
			return r;
		r = broker_client_state(&s->broker, pids, l->n, dev, err);
	}
	if (r < 0)
		return r;
	for (size_t i = 0; i < l->n; i++)
		l->items[i]->dev = dev[i];
	return 0;
}

/* The broker waits for some seconds; on a busy machine the driver may take longer to tell. */
static int ask_states(struct gpu_set *s, const struct selection *l, struct brumate_error *err)
{
	int r = ask_once(s, l, err);

	for (int tries = 1; r == 0 && tries < STATE_TRIES; tries++) {
		auto_(selection_fini) struct selection untold;

		r = select_processes(&untold, s, DEV_STATE_UNKNOWN, err);
		if (r < 0 || !untold.n)
			return r;
		log_info("the driver is asked for states again: job=%s n=%zu", s->target->id,
			 untold.n);
		r = ask_once(s, &untold, err);
	}
	return r;
}

static int ask_all_states(struct gpu_set *s, struct brumate_error *err)
{
	auto_(selection_fini) struct selection all;
	int r = select_processes(&all, s, DEV_STATE__MAX, err);
	size_t n = 0;

	for (size_t i = 0; r == 0 && i < all.n; i++)
		if (!all.items[i]->is_asleep)
			all.items[n++] = all.items[i];
	if (r < 0 || !n)
		return r;
	all.n = n;
	return ask_states(s, &all, err);
}

static bool is_stopped(const struct proc_info *info)
{
	return info->state == 'T' || info->state == 't';
}

/* The driver's calls do not return for a stopped process that it knows: it would have to answer for itself. */
static int refuse_stopped(const struct proc_info *info, struct brumate_error *err)
{
	brumate_fail(err, EBUSY, "process %d (%s) is %s", info->id.pid, info->comm,
		     info->tracer_pid ? "held by a debugger" : "stopped");
	brumate_hint(err, "the driver only saves processes that run: %s",
		     info->tracer_pid ? "detach the debugger" : "continue it with `kill -CONT`");
	brumate_error_exit(err, EXIT_FROZEN);
	return -EBUSY;
}

/* What the record says of one that we have stopped, and that has not run since. */
static const struct job_stopped *find_asleep(const struct gpu_set *s, const struct proc_info *info)
{
	return is_stopped(info) ? target_find_stopped(s->target, info->id) : NULL;
}

/* The driver had put it away before. */
static void add_asleep(struct gpu_set *s, const struct proc_info *info)
{
	s->items[s->n++] = (struct gpu_process){ .id = info->id,
						 .rss_bytes = info->rss_bytes,
						 .dev.state = DEV_STATE_CHECKPOINTED,
						 .is_asleep = true };
}

/* All processes of a job use GPUs of one vendor. */
static int note_vendor(struct gpu_set *s, const struct proc_info *info,
		       const struct gpu_vendor *vendor, struct brumate_error *err)
{
	if (vendor == s->vendor)
		return 0;
	if (s->n) {
		brumate_fail(err, EOPNOTSUPP,
			     "process %d (%s) uses GPUs of %s, others of the job those of %s",
			     info->id.pid, info->comm, vendor->name, s->vendor->name);
		brumate_hint(err, "run what uses different GPUs as different jobs");
		return -EOPNOTSUPP;
	}
	leave_vendor(s, vendor);
	return 0;
}

static int fail_hidden(const struct proc_info *info, int r, struct brumate_error *err)
{
	brumate_fail(err, -r, "process %d (%s): cannot be looked at: %m", info->id.pid, info->comm);
	if (r == -EACCES)
		brumate_hint(err, "root can; a program hides itself from its user by "
				  "prctl(PR_SET_DUMPABLE), or by not being readable");
	return r;
}

static int list_candidates(struct gpu_set *s, const struct proc_tree *tree,
			   struct brumate_error *err)
{
	s->n = 0;
	s->items = calloc(tree->n + 1, sizeof(*s->items));
	if (!s->items)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < tree->n; i++) {
		const struct proc_info *info = &tree->items[i];

		const struct job_stopped *asleep = find_asleep(s, info);

		if (asleep && asleep->gpu)
			add_asleep(s, info);
		if (asleep)
			continue;
		const struct gpu_vendor *vendor;
		int uses = info->state == 'Z' ? 0 : scan_gpu_vendor(info->id.pid, &vendor);
		if (uses < 0)
			return fail_hidden(info, uses, err);
		if (!uses)
			continue;
		if (is_stopped(info) && !scan_can_have_gpu_state(info))
			continue;
		/* A forked child may have no GPU state of its own, which the driver tells. */
		if (is_stopped(info) && !info->is_fork)
			return refuse_stopped(info, err);
		if ((uses = note_vendor(s, info, vendor, err)) < 0)
			return uses;
		s->items[s->n++] =
			(struct gpu_process){ .id = info->id, .rss_bytes = info->rss_bytes };
	}
	return 0;
}

/* Those of which the driver did not say that it knows nothing. */
static int check_stopped(const struct gpu_set *s, const struct proc_tree *tree,
			 struct brumate_error *err)
{
	for (size_t i = 0; i < s->n; i++)
		for (size_t k = 0; k < tree->n; k++)
			if (s->items[i].dev.state != DEV_STATE_NONE && !s->items[i].is_asleep &&
			    proc_is_same(s->items[i].id, tree->items[k].id) &&
			    is_stopped(&tree->items[k]))
				return refuse_stopped(&tree->items[k], err);
	return 0;
}

static int find_anew(struct gpu_set *s, const struct proc_tree *tree, struct brumate_error *err)
{
	int r = list_candidates(s, tree, err);

	if (r == 0 && s->n && (r = gpu_set_open(s, err)) == 0)
		r = ask_all_states(s, err);
	return r < 0 ? r : check_stopped(s, tree, err);
}

/* What the driver can do is only asked where it decides something. */
static int find_driver_jobs(struct gpu_set *s, struct brumate_error *err)
{
	struct broker_info info = { 0 };

	s->one_by_one = false;
	for (size_t i = 0; i < s->n; i++) {
		struct gpu_process *p = &s->items[i];

		p->in_driver_job = driver_job_find(&p->driver_job, s->vendor, p->id.pid);
		/* One that ends just now is in none. */
		s->one_by_one |= p->in_driver_job && !proc_has_ended(p->id);
	}
	if (!s->one_by_one)
		return 0;
	int r = gpu_set_open(s, err);
	if (r == 0)
		r = broker_client_info(&s->broker, &info, err);
	s->features = info.device.features;
	return r;
}

bool gpu_set_shares_by_driver(const struct gpu_set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->items[i].in_driver_job != 1 ||
		    !driver_job_is_same(&s->items[i].driver_job, &s->items[0].driver_job))
			return false;
	return s->n && s->features & DEV_LEGACY_IPC;
}

int gpu_set_find(struct gpu_set *s, const struct proc_tree *tree, struct brumate_error *err)
{
	struct gpu_process *before = take_ptr(&s->items);
	size_t n_before = s->n;
	int r = find_anew(s, tree, err);

	/* An undo that cannot ask the driver now still knows its processes. */
	free(r < 0 ? s->items : before);
	if (r < 0) {
		s->items = before;
		s->n = n_before;
		return r;
	}
	size_t known = 0;
	for (size_t i = 0; i < s->n; i++)
		if (s->items[i].dev.state != DEV_STATE_NONE)
			s->items[known++] = s->items[i];
	s->n = known;
	return find_driver_jobs(s, err);
}

int gpu_set_check_suspend(const struct gpu_set *s, struct brumate_error *err)
{
	if (!s->n || !s->vendor->saved_by_criu)
		return 0;
	brumate_fail(err, EOPNOTSUPP, "job %s: what it has on %s GPUs can be saved to a disk only",
		     s->target->id, s->vendor->name);
	brumate_hint(err, "`brumate checkpoint` saves it, `brumate restore` brings it back");
	return -EOPNOTSUPP;
}

int gpu_set_check_rehearse(const struct gpu_set *s, size_t n_processes, struct brumate_error *err)
{
	if (!n_processes || !s->vendor->saved_by_criu)
		return 0;
	brumate_fail(
		err, EOPNOTSUPP,
		"what processes have on %s GPUs cannot be rehearsed: CRIU's plugin would put it "
		"there",
		s->vendor->name);
	brumate_hint(err, "only a restore tells");
	return -EOPNOTSUPP;
}

bool gpu_set_is_asleep(const struct gpu_set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->items[i].is_asleep)
			return true;
	return false;
}

bool gpu_set_is_running(const struct gpu_set *s)
{
	for (size_t i = 0; i < s->n; i++)
		if (s->items[i].dev.state != DEV_STATE_RUNNING)
			return false;
	return true;
}

uint64_t gpu_set_bytes(const struct gpu_set *s)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < s->n; i++)
		sum += s->items[i].dev.used_bytes;
	return sum;
}

struct proc_id *gpu_set_ids(const struct gpu_set *s)
{
	struct proc_id *ids = calloc(s->n + 1, sizeof(*ids));

	for (size_t i = 0; ids && i < s->n; i++)
		ids[i] = s->items[i].id;
	return ids;
}

uint64_t gpu_set_measure_host(void *set)
{
	const struct gpu_set *s = set;
	uint64_t now = 0, before = 0;

	for (size_t i = 0; i < s->n; i++) {
		struct proc_info info;

		before += s->items[i].rss_bytes;
		if (proc_read(&info, s->items[i].id.pid, NULL) == 0)
			now += info.rss_bytes;
	}
	return now > before ? now - before : 0;
}

/* ---- acting ---- */

/* The first process for which an action failed, for the message alone. */
struct failure {
	pid_t pid; /* 0: none failed */
	struct broker_outcome outcome;
};

/* Makes one call of the broker for @n processes, of which @ret has room for the outcomes. */
static int call_broker(struct gpu_set *s, enum dev_action action, const pid_t *pids, size_t n,
		       uint64_t deadline_ns, struct broker_outcome *ret, struct brumate_error *err)
{
	bool map = action == DEV_RESTORE;
	int left_ms = deadline_left_ms(deadline_ns);

	return broker_client_act(&s->broker, action, pids, n, left_ms > 0 ? (uint32_t)left_ms : 1,
				 map ? s->pairs : NULL, map ? s->n_pairs : 0, ret, err);
}

/* One after the other, always in the same order. Where one cannot go there, no more do; but of those that come back,
 * as many as can. */
static int call_one_by_one(struct gpu_set *s, enum dev_action action, const pid_t *pids, size_t *n,
			   uint64_t deadline_ns, struct broker_outcome *ret,
			   struct brumate_error *err)
{
	bool goes = action == DEV_LOCK || action == DEV_DO_CHECKPOINT;
	int r = 0;

	for (size_t i = 0; r == 0 && i < *n; i++) {
		r = call_broker(s, action, &pids[i], 1, deadline_ns, &ret[i], err);
		if (r == 0 && goes && ret[i].result.number)
			*n = i + 1;
	}
	return r;
}

/* Makes the call for all of @l that are not in state @want. What it returned is only kept for the message: the states
 * asked for afterwards decide. */
static int act_once(struct gpu_set *s, const struct selection *l, enum dev_action action,
		    enum dev_state want, uint32_t timeout_ms, struct failure *why,
		    struct brumate_error *err)
{
	auto_free pid_t *pids = calloc(l->n + 1, sizeof(*pids));
	auto_free struct broker_outcome *outcomes = calloc(l->n + 1, sizeof(*outcomes));
	uint64_t deadline_ns = deadline_in_ms(timeout_ms);
	size_t n = 0;

	s->driver_refused = false;
	if (!pids || !outcomes)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < l->n; i++)
		if (l->items[i]->dev.state != want)
			pids[n++] = l->items[i]->id.pid;
	if (!n)
		return 0;
	int r = s->one_by_one ? call_one_by_one(s, action, pids, &n, deadline_ns, outcomes, err)
			      : call_broker(s, action, pids, n, deadline_ns, outcomes, err);
	for (size_t i = 0; r == 0 && i < n; i++) {
		const struct broker_outcome *o = &outcomes[i];

		/* A negative number is ours (a deadline, a fault), not the driver's. */
		if (action == DEV_RESTORE && o->result.number > 0 &&
		    o->state == DEV_STATE_CHECKPOINTED)
			s->driver_refused = true;
		if (o->result.number && !why->pid)
			*why = (struct failure){ pids[i], *o };
	}
	return r;
}

/* What the driver knew and knows no more needs nothing: it has ended, or started another program, or its driver
 * has shut down on its way out. */
static bool is_over(const struct gpu_process *p)
{
	return p->dev.state == DEV_STATE_NONE;
}

static const struct gpu_process *find_other_than(const struct selection *l, enum dev_state want)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->items[i]->dev.state != want && !is_over(l->items[i]))
			return l->items[i];
	return NULL;
}

/* Those of which the driver says so in the middle of an operation are asked about again once they have had time
 * to end: only where it says so twice it counts. */
static int confirm_over(struct gpu_set *s, const struct selection *l, struct brumate_error *err)
{
	bool again = false;

	for (size_t i = 0; i < l->n; i++)
		if (is_over(l->items[i]))
			again |=
				proc_wait_gone(l->items[i]->id, deadline_in_ms(END_TIMEOUT_MS)) < 0;
	return again ? ask_states(s, l, err) : 0;
}

/* Forgets them. Returns how many there were. */
static size_t drop_over(struct gpu_set *s)
{
	size_t left = 0, n = s->n;

	for (size_t i = 0; i < n; i++)
		if (is_over(&s->items[i]))
			log_info(
				"process no longer uses the GPU, and the job continues without it: "
				"job=%s pid=%d",
				s->target->id, s->items[i].id.pid);
		else
			s->items[left++] = s->items[i];
	s->n = left;
	return n - left;
}

static void add_hint(const struct gpu_set *s, enum dev_action action, const struct failure *why,
		     struct brumate_error *err)
{
	if (strstr(why->outcome.result.name, "NOT_SUPPORTED"))
		brumate_hint(
			err,
			"the driver cannot save what this process holds (managed memory, IPC, a "
			"profiler that is active …): end the profiling, or see `brumate doctor "
			"--job %s`",
			s->target->id);
	else if (action == DEV_RESTORE)
		brumate_hint(
			err,
			"its data is safe in host memory, but where the driver refuses for good "
			"(memory shared between GPUs or processes) nothing brings it back");
	else if (action == DEV_LOCK)
		brumate_hint(
			err,
			"a kernel or host callback that runs long holds the GPU; try again with a "
			"longer --timeout");
}

/* Says why @p is not in the state it should be in by now. */
static int explain(const struct gpu_set *s, const struct gpu_process *p, enum dev_action action,
		   const struct failure *why, struct brumate_error *err)
{
	const struct broker_outcome *o = &why->outcome;

	/* A process that the driver knew and knows no more is on its way out. */
	if (p->dev.state == DEV_STATE_NONE)
		proc_wait_gone(p->id, deadline_in_ms(END_TIMEOUT_MS));
	if (proc_has_ended(p->id))
		return brumate_fail(err, ESRCH, "process %d ended", p->id.pid);
	if (why->pid)
		brumate_fail(err, EIO, "process %d: driver says %s (%d) after %.1f s; state is %s",
			     why->pid, o->result.name, o->result.number, o->seconds,
			     dev_state_name(p->dev.state));
	else
		brumate_fail(err, EIO, "state is %s", dev_state_name(p->dev.state));
	add_hint(s, action, why, err);
	return -EIO;
}

static int act_on(struct gpu_set *s, const struct selection *l, enum dev_action action,
		  enum dev_state want, uint32_t timeout_ms, struct brumate_error *err)
{
	struct failure why = { 0 };
	int r = 0;

	for (int tries = 0; tries < REOPEN_TRIES; tries++) {
		r = act_once(s, l, action, want, timeout_ms, &why, err);
		if (r == -EPIPE) {
			if ((r = reopen_broker(s, err)) < 0)
				return r;
			r = -EPIPE;
		} else if (r < 0) {
			return r;
		}
		int asked = ask_states(s, l, err);
		if (asked == 0)
			asked = confirm_over(s, l, err);
		if (asked < 0)
			return asked;
		if (!find_other_than(l, want))
			break;
		/* A restore that failed is tried once more: what the driver says then is final. */
		if (r == 0 && (!s->driver_refused || tries))
			break;
	}
	const struct gpu_process *bad = find_other_than(l, want);
	return bad ? explain(s, bad, action, &why, err) : 0;
}

int gpu_set_act(struct gpu_set *s, enum dev_action action, enum dev_state want, uint32_t timeout_ms,
		struct brumate_error *err)
{
	auto_(selection_fini) struct selection all = { 0 };

	if (s->vendor->saved_by_criu)
		return 1;
	int r = select_processes(&all, s, DEV_STATE__MAX, err);
	if (r == 0)
		r = act_on(s, &all, action, want, timeout_ms, err);
	/* A restore may find no process left; a suspend needs at least one. */
	if (r == 0 && drop_over(s) && !s->n && (action == DEV_LOCK || action == DEV_DO_CHECKPOINT))
		return brumate_fail(err, ESRCH, "no process uses the GPU any more");
	return r;
}

/* Acts on those in state @from alone, and leaves the others as they are. */
static int act_from(struct gpu_set *s, enum dev_state from, enum dev_action action,
		    uint32_t timeout_ms, struct brumate_error *err)
{
	static const enum dev_state after[DEV_ACTION__MAX] = {
		[DEV_LOCK] = DEV_STATE_LOCKED,
		[DEV_DO_CHECKPOINT] = DEV_STATE_CHECKPOINTED,
		[DEV_RESTORE] = DEV_STATE_LOCKED,
		[DEV_UNLOCK] = DEV_STATE_RUNNING,
	};
	auto_(selection_fini) struct selection some;
	int r = select_processes(&some, s, from, err);

	if (r < 0 || !some.n)
		return r;
	return act_on(s, &some, action, after[action], timeout_ms, err);
}

int gpu_set_restore_suspended(struct gpu_set *s, struct brumate_error *err)
{
	const struct failure unknown = { 0 };
	int r = act_from(s, DEV_STATE_CHECKPOINTED, DEV_RESTORE, GPU_SET_DRIVER_TIMEOUT_MS, err);

	drop_over(s);
	for (size_t i = 0; r == 0 && i < s->n; i++) {
		enum dev_state state = s->items[i].dev.state;

		if (state != DEV_STATE_LOCKED && state != DEV_STATE_RUNNING)
			r = explain(s, &s->items[i], DEV_RESTORE, &unknown, err);
	}
	return r;
}

/* Forgets processes that have ended: they need nothing any more. */
static void drop_ended(struct gpu_set *s)
{
	size_t left = 0;

	for (size_t i = 0; i < s->n; i++)
		if (!proc_has_ended(s->items[i].id))
			s->items[left++] = s->items[i];
	s->n = left;
}

/* Takes processes in state @from[0] by @action[0] within @first_ms, then those in @from[1] by @action[1]. */
static int take_two_steps(struct gpu_set *s, const enum dev_state from[2],
			  const enum dev_action action[2], uint32_t first_ms,
			  struct brumate_error *err)
{
	int r = 0;

	drop_ended(s);
	if (!s->n)
		return 0;
	if ((r = gpu_set_open(s, err)) < 0 || (r = ask_all_states(s, err)) < 0)
		return r;
	for (int i = 0; i < 2; i++) {
		int one = act_from(s, from[i], action[i], i ? GPU_SET_DRIVER_TIMEOUT_MS : first_ms,
				   err);

		drop_ended(s);
		if (one == -ESRCH)
			one = 0; /* ended meanwhile */
		if (one < 0)
			r = one;
		if ((one = ask_all_states(s, r < 0 ? NULL : err)) < 0)
			return one;
		drop_over(s);
	}
	return r;
}

/* All must be in state @want by now, which @action is to bring about. */
static int check_states(struct gpu_set *s, enum dev_state want, enum dev_action action,
			struct brumate_error *err)
{
	const struct failure unknown = { 0 };

	for (size_t i = 0; i < s->n; i++)
		if (s->items[i].dev.state != want)
			return explain(s, &s->items[i], action, &unknown, err);
	return 0;
}

int gpu_set_bring_back(struct gpu_set *s, struct brumate_error *err)
{
	static const enum dev_state from[2] = { DEV_STATE_CHECKPOINTED, DEV_STATE_LOCKED };
	static const enum dev_action action[2] = { DEV_RESTORE, DEV_UNLOCK };

	for (size_t i = 0; s->vendor->saved_by_criu && i < s->n; i++)
		gpu_vendor_go_on(s->vendor, s->items[i].id.pid);
	int r = take_two_steps(s, from, action, GPU_SET_DRIVER_TIMEOUT_MS, err);

	return r < 0 ? r : check_states(s, DEV_STATE_RUNNING, DEV_UNLOCK, err);
}

int gpu_set_put_away(struct gpu_set *s, uint32_t lock_timeout_ms, struct brumate_error *err)
{
	static const enum dev_state from[2] = { DEV_STATE_RUNNING, DEV_STATE_LOCKED };
	static const enum dev_action action[2] = { DEV_LOCK, DEV_DO_CHECKPOINT };
	int r = take_two_steps(s, from, action, lock_timeout_ms, err);

	return r < 0 ? r : check_states(s, DEV_STATE_CHECKPOINTED, DEV_DO_CHECKPOINT, err);
}
