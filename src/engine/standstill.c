// SPDX-License-Identifier: MIT
/*
 * A suspended job stands still: its members are stopped once nothing of it is on a GPU; a member that watches the others
 * would otherwise take these for hung. The record names a member before it is stopped, so that the next shim makes it
 * run on where this one dies.
 *
 * A child is stopped once its parent stands still, and runs on before it: a parent that waits for a child sees nothing of
 * it. A job that was taken in has a parent outside, which would, and runs on.
 */
#include "engine/steps.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/log.h"
#include "datapath/park.h"
#include "engine/gpu-set.h"
#include "job/standstill.h"
#include "process/reaper.h"

/* A parent that waits in the kernel may take long to stop: towards the end its children no longer wait for it. */
enum { STOP_WAIT_MS = 1000, ORDER_GIVEN_UP_MS = 500, HEAD_START_MS = 100 };

/* ---- who ---- */

static bool has_gpu_state(const struct op *op, struct proc_id id)
{
	for (size_t i = 0; i < op->gpus.n; i++)
		if (proc_is_same(op->gpus.items[i].id, id))
			return true;
	return false;
}

static bool has_agent(const struct op *op, const struct proc_info *p)
{
	for (size_t i = 0; i < op->data.n_agents; i++)
		if (proc_is_same(op->data.agents[i].agent.id, p->id))
			return true;
	return false;
}

/* One that ends, or that another process has stopped, is left as it is. */
static bool can_stop(const struct op *op, const struct proc_info *p)
{
	return !strchr("ZXTt", p->state) && !p->ends &&
	       !(proc_is_same(p->id, op->target->root) && reaper_is(p->id));
}

static bool may_stand_still(const struct op *op)
{
	const struct target *target = op->target;

	return !op->request->cpu_runs && target->owned_by->may_stand_still(target);
}

static int note_stopped(struct target *target, const struct job_stopped *one,
			struct brumate_error *err)
{
	if (array_add(target->stopped, target->n_stopped, *one) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return 0;
}

/* ---- stopping ---- */

/* Notes the members that are to be stopped and are not yet; @ret_n: how many run. */
static int note_running(struct op *op, const struct proc_tree *tree, bool all, size_t *ret_n,
			struct brumate_error *err)
{
	struct target *target = op->target;
	const size_t n_before = target->n_stopped;
	int r = 0;

	*ret_n = 0;
	for (size_t i = 0; r == 0 && i < tree->n; i++) {
		const struct proc_info *p = &tree->items[i];
		const bool gpu = has_gpu_state(op, p->id);
		const struct job_stopped one = { p->id, gpu, gpu || has_agent(op, p) };

		if (!can_stop(op, p) || (one.goes_first && !all))
			continue;
		++*ret_n;
		if (!target_find_stopped(target, p->id))
			r = note_stopped(target, &one, err);
	}
	if (r < 0 || target->n_stopped == n_before)
		return r;
	return target_save(target, err);
}

/* The parent of @p, where that is to stand still, too; NULL: it is none of those. */
static const struct proc_info *stopped_parent(const struct op *op, const struct proc_tree *tree,
					      const struct proc_info *p, bool all)
{
	for (size_t i = 0; i < tree->n; i++) {
		const struct proc_info *parent = &tree->items[i];
		const struct job_stopped *s;

		if (parent->id.pid != p->ppid)
			continue;
		s = target_find_stopped(op->target, parent->id);
		return s && (all || !s->goes_first) ? parent : NULL;
	}
	return NULL;
}

/*
 * Whether @parent does not learn that its child stops: it stands still with all its threads, and has a SIGCHLD that it has
 * not taken. The kernel keeps one for a process, with what that was sent for; this one is sent for nothing. Else it would be
 * the stop, which script(1) reads when it runs on, and stops itself for ever.
 */
static bool hide_stop_from(const struct op *op, const struct proc_info *parent)
{
	if (proc_has_stopped(parent->id) == 0)
		return false;
	proc_signal_as(parent->id, SIGCHLD, op->target->uid);
	return true;
}

/* What may not be signalled by the job's user runs on. @in_order: none stops before its parent stands still. */
static size_t stop_running(struct op *op, const struct proc_tree *tree, bool all, bool in_order)
{
	const struct target *target = op->target;
	size_t n = 0;

	for (size_t i = 0; i < tree->n; i++) {
		const struct proc_info *p = &tree->items[i];
		const struct job_stopped *s = target_find_stopped(target, p->id);
		const struct proc_info *parent;

		if (!s || !can_stop(op, p) || (!all && s->goes_first))
			continue;
		parent = stopped_parent(op, tree, p, all);
		if (in_order && parent && !hide_stop_from(op, parent))
			n++;
		else
			n += proc_signal_as(p->id, SIGSTOP, target->uid) == 0;
	}
	return n;
}

/* Stops members until none that could be stopped runs: they may fork meanwhile. One that waits in the kernel stops when it
 * comes back, and does nothing before. */
static int stop_members(struct op *op, bool all, struct brumate_error *err)
{
	const struct proc_members members = target_members(op->target);
	const uint64_t until_ns = deadline_in_ms(STOP_WAIT_MS);
	size_t n;

	if (all) /* an agent that stands still would not hang up */
		park_detach(&op->data);
	do {
		auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
		int r = proc_members_read(&tree, &members, err);

		if (r == 0)
			r = note_running(op, &tree, all, &n, err);
		if (r < 0)
			return r;
		const bool in_order = clock_now_ns() + ORDER_GIVEN_UP_MS * NS_PER_MS < until_ns;

		if (!n || !stop_running(op, &tree, all, in_order))
			return 0;
		/* A stop has no event for anybody but the parent, so it is looked for. */
		nanosleep(&(struct timespec){ .tv_nsec = NS_PER_MS / 2 }, NULL);
	} while (clock_now_ns() < until_ns);
	return 0;
}

int step_stop_others(struct op *op, struct brumate_error *err)
{
	int r = may_stand_still(op) ? stop_members(op, false, err) : 1;

	return r == 0 && !op->target->n_stopped ? 1 : r;
}

int step_stop(struct op *op, struct brumate_error *err)
{
	return may_stand_still(op) ? stop_members(op, true, err) : 1;
}

/* ---- running on ---- */

void step_undo_stop(struct op *op)
{
	standstill_end(op->target);
}

int step_continue(struct op *op, struct brumate_error *err)
{
	if (!op->target->n_stopped)
		return 1;
	standstill_wake_first(op->target);
	int r = op_find_gpus(op, err);
	if (r == 0)
		r = op_find_agents(op, true, err);
	return r < 0 ? r : park_check(&op->data, err);
}

static bool any_goes_last(const struct target *target)
{
	for (size_t i = 0; i < target->n_stopped; i++)
		if (!target->stopped[i].goes_first && !proc_has_ended(target->stopped[i].id))
			return true;
	return false;
}

/* The others look first whether those that they watch have done anything: these get a moment to do it, from when their
 * gates have opened. */
static void await_head_start(const struct op *op)
{
	const uint64_t begin_ns =
		op->progress.released_ns ? op->progress.released_ns : clock_now_ns();
	struct timespec until = deadline_timespec(begin_ns + HEAD_START_MS * NS_PER_MS);

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

int step_continue_others(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	(void)err;

	if (!target->n_stopped)
		return 1;
	if (any_goes_last(target))
		await_head_start(op);
	standstill_end(target);
	park_let_in_late(&op->data);
	return 0;
}

void standstill_renew(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->target->state == JOB_SUSPENDED && op->target->n_stopped &&
	    stop_members(op, true, &err) < 0)
		log_error("a suspended job does not stand still: job=%s reason=\"%s\"",
			  op->target->id, err.text);
	else if (op->target->state == JOB_RUNNING && op->target->n_stopped)
		standstill_end(op->target);
}

/* ---- out of a checkpoint ---- */

static const struct manifest_process *find_saved(const struct manifest *m, pid_t inner_pid)
{
	for (size_t i = 0; i < m->n_processes; i++)
		if (m->processes[i].pid == inner_pid)
			return &m->processes[i];
	return NULL;
}

/* One that a signal has stopped between the look at the job and the dump is to give its device memory back: as no job with
 * one is saved, it runs on. CRIU has sent the signal once more, and does not wait until it stops. */
static void let_answer(struct op *op, const struct proc_info *p,
		       const struct manifest_process *saved)
{
	if (!saved || !saved->gpu || saved->stopped || proc_is_to_stop(p->id) != 1)
		return;
	progress_note(&op->progress,
		      "process %d (%s) had been stopped by a signal while it was saved: it runs on",
		      p->inner_pid, p->comm);
	proc_signal_as(p->id, SIGCONT, op->target->uid);
}

int step_continue_restored(struct op *op, struct brumate_error *err)
{
	const struct manifest *m = &op->restore.image.manifest;
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	const struct proc_members members = target_members(op->target);
	struct target *target = op->target;
	int r = proc_members_read(&tree, &members, err);

	/* A signal may have stopped it between the look at the job and the dump. While it stands still nobody sees the job end. */
	if (reaper_is(target->root) && proc_is_to_stop(target->root) == 1)
		proc_signal_as(target->root, SIGCONT, target->uid);
	target->n_stopped = 0;
	for (size_t i = 0; r == 0 && i < tree.n; i++)
		let_answer(op, &tree.items[i], find_saved(m, tree.items[i].inner_pid));
	for (size_t i = 0; r == 0 && i < tree.n; i++) {
		const struct proc_info *p = &tree.items[i];
		const struct manifest_process *saved = find_saved(m, p->inner_pid);
		const struct job_stopped one = {
			.id = p->id,
			.gpu = saved && saved->gpu,
			.goes_first = saved && (saved->gpu ||
						agent_listens(op->data.agent_dir, p->inner_pid)),
		};

		if (saved && saved->stopped)
			r = note_stopped(target, &one, err);
	}
	if (r < 0 || !target->n_stopped)
		return r < 0 ? r : 1;
	standstill_wake_first(target);
	return 0;
}
