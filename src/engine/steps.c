// SPDX-License-Identifier: MIT
/* Steps that several plans share, and what a failed plan leaves. */
#include "engine/steps.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "datapath/move.h"
#include "datapath/park.h"
#include "engine/gpu-set.h"
#include "engine/rights.h"
#include "process/reaper.h"

enum { END_TIMEOUT_MS = 1000 };

int step_identify(struct op *op, struct brumate_error *err)
{
	if (target_has_ended(op->target))
		return brumate_fail(err, ESRCH, "job %s has ended", op->target->id);
	int r = op_find_gpus(op, err);
	if (r == 0)
		r = op_find_agents(op, true, err);
	op->gpu_bytes = gpu_set_bytes(&op->gpus);
	return r;
}

/* ---- device memory out ---- */

/* A process that begins to use the GPU from now on is held back; one that has begun is found by then. */
static int hold_newcomers(struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;

	if (!op->data.uses_agents)
		return 0;
	int r = park_hold(&op->data, err);
	if (r == 0)
		r = proc_tree_read(&tree, op->target->root, err);
	if (r < 0 || !park_has_missed(&op->data, &tree))
		return r;
	r = op_find_gpus(op, err);
	if (r == 0)
		r = op_find_agents(op, true, err);
	return r;
}

/* Members that were beginning or ending before the gates were closed have begun or ended by now. */
static int settle_members(struct op *op, struct brumate_error *err)
{
	if (!op->data.has_changed)
		return 0;
	int r = op_find_gpus(op, err);
	if (r < 0)
		return r;
	op->gpu_bytes = gpu_set_bytes(&op->gpus);
	return placement_record(op->target, &op->gpus, err);
}

int step_gate(struct op *op, struct brumate_error *err)
{
	if (op->was_suspended)
		return 1;
	int r = hold_newcomers(op, err);
	if (r < 0 || !op->data.n_agents)
		return r < 0 ? r : 1;
	if ((r = placement_record(op->target, &op->gpus, err)) < 0)
		return r;
	op->progress.stopped_ns = clock_now_ns();
	op->touched = true;
	int gated = park_gate(&op->data, err);
	if (gated < 0)
		return gated;
	if ((r = settle_members(op, err)) < 0 || (r = rights_check(op, err)) < 0)
		return r;
	return gated;
}

static int park(struct op *op, bool copies, struct brumate_error *err)
{
	if (op->was_suspended || !op->data.n_agents)
		return 1;
	return park_take(&op->data, copies, err);
}

/* Whether the copy begins in any case, at once, and what takes it on is there. */
static bool may_copy_ahead(const struct op *op)
{
	return !op->request->park && !op->request->leave_running &&
	       (op->data.sink.save || !strcmp(op->kind, "suspend"));
}

int step_park(struct op *op, struct brumate_error *err)
{
	return park(op, may_copy_ahead(op), err);
}

int step_copy_out(struct op *op, struct brumate_error *err)
{
	const struct vault *v = op->data.vault;

	if (!v || !v->n_pieces || op->request->park)
		return 1;
	int r = op->was_suspended ? move_start_saving(&op->data, err)
				  : move_start_out(&op->data, err);
	return r < 0 ? r : 1; /* its duration is reported by the step that waits for it */
}

int step_unmap(struct op *op, struct brumate_error *err)
{
	if (op->was_suspended || !op->data.n_agents || !op->data.vault->n_pieces)
		return 1;
	return park_unmap(&op->data, err);
}

int step_data(struct op *op, struct brumate_error *err)
{
	int r = move_wait(&op->data, err);

	return r < 0 ? r : 1; /* its phase is recorded already */
}

void step_undo_copy(struct op *op)
{
	move_stop(&op->data);
}

/* ---- device memory in ---- */

int step_map_early(struct op *op, struct brumate_error *err)
{
	park_map_early(&op->data);
	return 1;
}

int step_map(struct op *op, struct brumate_error *err)
{
	return op->data.n_agents ? park_map(&op->data, err) : 1;
}

void step_record_baseline(struct op *op)
{
	op->target->kept_bytes = vault_baseline_bytes(op->data.vault);
}

int step_open(struct op *op, struct brumate_error *err)
{
	if (!op->data.n_agents) {
		park_let_in(&op->data);
		return 1;
	}
	int r = park_open(&op->data, err);
	if (r == 0)
		step_record_baseline(op);
	return r;
}

/* ---- the driver ---- */

int step_gpu_lock(struct op *op, struct brumate_error *err)
{
	uint32_t timeout_ms = progress_left_ms(&op->progress, op->data.lock_timeout_ms);

	if (op->was_suspended || !op->gpus.n)
		return 1;
	if (!op->progress.stopped_ns)
		op->progress.stopped_ns = clock_now_ns();
	op->touched = true;
	int r = gpu_set_act(&op->gpus, DEV_LOCK, DEV_STATE_LOCKED, timeout_ms, err);
	/* Where there is no gate, it is this that holds the members back. */
	return r < 0 || op->data.n_agents ? r : rights_check(op, err);
}

int step_gpu_checkpoint(struct op *op, struct brumate_error *err)
{
	if (op->was_suspended || !op->gpus.n)
		return 1;
	if (!move_measure(&op->data))
		progress_measure(&op->progress, gpu_set_measure_host, &op->gpus, op->gpu_bytes);
	/* With agents this was done before any memory was taken out. */
	int r = op->data.n_agents ? 0 : placement_record(op->target, &op->gpus, err);
	if (r < 0)
		return r;
	return gpu_set_act(&op->gpus, DEV_DO_CHECKPOINT, DEV_STATE_CHECKPOINTED,
			   GPU_SET_DRIVER_TIMEOUT_MS, err);
}

static uint64_t job_gpu_bytes(const struct target *target)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < target->n_gpus; i++)
		sum += target->gpus[i].bytes;
	return sum;
}

int step_gpu_unlock(struct op *op, struct brumate_error *err)
{
	bool has_data = op->data.n_agents || move_is_on(&op->data);

	if (!op->gpus.n)
		return 1;
	int r = gpu_set_act(&op->gpus, DEV_UNLOCK, DEV_STATE_RUNNING, GPU_SET_DRIVER_TIMEOUT_MS,
			    err);
	if (!has_data)
		op->progress.released_ns = clock_now_ns();
	if (r == 0 && op_find_gpus(op, NULL) == 0)
		op->gpu_bytes = has_data ? job_gpu_bytes(op->target) : gpu_set_bytes(&op->gpus);
	return r;
}

void step_undo_gpu(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->was_suspended || !op->touched)
		return;
	if (gpu_set_bring_back(&op->gpus, &err) < 0)
		log_error("GPU state could not be brought back: job=%s reason=\"%s\"",
			  op->target->id, err.text);
	op->progress.released_ns = clock_now_ns();
}

/* ---- all of it, whatever state it is in ---- */

/* Without agents known so far, those of a predecessor's operation are looked for. */
static int reach_agents(struct op *op, struct brumate_error *err)
{
	return op->data.n_agents ? 0 : op_find_agents(op, true, err);
}

static bool may_have_agents(const struct op *op)
{
	return op->data.vault && op->data.uses_agents;
}

static int bring_data_back(struct op *op, struct brumate_error *err)
{
	int r = may_have_agents(op) ? reach_agents(op, err) : 0;

	if (r == 0 && may_have_agents(op))
		r = park_return(&op->data, err);
	if (r == 0 && op->data.n_agents)
		step_record_baseline(op);
	if (r == 0)
		park_let_in(&op->data);
	return r;
}

static int put_data_away(struct op *op, struct brumate_error *err)
{
	if (!may_have_agents(op))
		return 0;
	int r = reach_agents(op, err);
	if (r == 0)
		r = park_take_back(&op->data, err);
	if (r != 0)
		return r < 0 ? r : 0;
	if ((r = step_gate(op, err)) < 0 || (r = park(op, false, err)) < 0 ||
	    (r = step_unmap(op, err)) < 0)
		return r;
	return move_away(&op->data, err);
}

void step_undo_park(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	move_stop(&op->data); /* which may have begun while it was parked */
	if (op->was_suspended || target_has_ended(op->target))
		return;
	if (!op->touched || !op->data.n_agents) {
		park_let_in(&op->data);
		return;
	}
	if (bring_data_back(op, &err) < 0)
		log_error("device memory could not be brought back: job=%s reason=\"%s\"",
			  op->target->id, err.text);
	op->progress.released_ns = clock_now_ns();
}

void step_undo_map(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->data.n_agents && op->touched && !target_has_ended(op->target) &&
	    put_data_away(op, &err) < 0)
		log_error("device memory could not be taken out again: job=%s reason=\"%s\"",
			  op->target->id, err.text);
}

int step_bring_back(struct op *op, struct brumate_error *err)
{
	int r = gpu_set_bring_back(&op->gpus, err);

	return r < 0 ? r : bring_data_back(op, err);
}

/* An agent can only take memory out while the driver lets its process work. */
int step_put_away(struct op *op, struct brumate_error *err)
{
	int r = gpu_set_is_running(&op->gpus) ? put_data_away(op, err) : 0;

	return r < 0 ? r : gpu_set_put_away(&op->gpus, GPU_SET_DRIVER_TIMEOUT_MS, err);
}

void step_discard_gpus(struct op *op)
{
	if (op->data.vault && op->data.uses_agents) {
		op_find_agents(op, true, NULL);
		park_discard(&op->data);
	}
	if (op->gpus.n)
		gpu_set_put_away(&op->gpus, OP_LOCK_TIMEOUT_MS, NULL);
}

/* ---- what a failure left ---- */

bool target_ends_now(const struct target *target)
{
	return target_has_ended(target) ||
	       proc_wait_gone(target->root, deadline_in_ms(END_TIMEOUT_MS)) == 0;
}

static bool is_too_late(const struct op *op)
{
	return progress_left_ms(&op->progress, 1) == 0;
}

/* What was done to the job could not be taken back yet. The state stays, and the owner of the record has
 * engine_recover() try again. */
static int leave_half_done(struct op *op, int r, const struct brumate_error *why,
			   struct brumate_error *err)
{
	struct target *target = op->target;

	brumate_wrap(err, r, "job %s is held until this is taken back: %s", target->id, why->text);
	brumate_error_exit(err, is_too_late(op) ? EXIT_TIMEOUT : EXIT_STILL_RUNNING);
	brumate_hint(err, "that is tried again and again; `brumate ps` says when the job is %s",
		     op->was_suspended || target->state == JOB_RESUMING ? "suspended" : "running");
	snprintf(target->message, sizeof(target->message), "%s: %s", op->kind, err->text);
	target_save(target, NULL);
	return r;
}

void engine_done(struct op *op, enum job_state state)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (target_set_state(op->target, state, &err) == 0)
		return;
	log_error("the record is not on disk yet: job=%s reason=\"%s\"", op->target->id, err.text);
	progress_note(&op->progress,
		      "%s: the job is %s, which its record says once it can be written", err.text,
		      job_state_name(state));
}

int step_tick(void *arg, struct brumate_error *err)
{
	struct op *op = arg;

	return progress_check(&op->progress, err);
}

void step_tell_stuck(void *arg, pid_t criu, const struct brumate_error *why)
{
	struct op *op = arg;
	struct target *target = op->target;
	struct brumate_error err = *why;

	brumate_wrap(&err, -err.code,
		     "job %s is held until CRIU, process %d, ends, which was killed and still "
		     "waits for a "
		     "file system, as it seems",
		     target->id, criu);
	if (target->state == JOB_CHECKPOINTING)
		brumate_error_exit(&err, EXIT_STILL_RUNNING);
	brumate_hint(&err,
		     "look for files of the job on a file system that does not answer; once that "
		     "does, or is "
		     "unmounted by force (umount -f), the rest is done, and `brumate ps` says so");
	log_warn("%s: kind=%s", err.text, op->kind);
	snprintf(target->message, sizeof(target->message), "%s: %s", op->kind, err.text);
	target_save(target, NULL);
	progress_wait_for(&op->progress, "the file system that CRIU waits for");
	progress_fail(&op->progress, &err);
}

static void say_stuck(const struct target *target, int r, const struct brumate_error *asked,
		      struct brumate_error *err)
{
	brumate_wrap(err, r, "job %s is stuck: %s", target->id, asked->text);
	brumate_error_exit(err, EXIT_JOB_LOST);
	brumate_hint(err,
		     "its GPU state is held by the driver; try `brumate resume %s`, or end "
		     "it with `brumate kill %s`",
		     target->id, target->id);
}

static int take_back(struct op *op, enum job_state to, struct brumate_error *err)
{
	int r = fault_point("undo.begin");

	if (r < 0)
		return brumate_fail(err, -r, "injected at undo.begin: %m");
	return to == JOB_SUSPENDED ? step_put_away(op, err) : step_bring_back(op, err);
}

/* The job is as it was. A timeout has an exit code of its own, for anything that was waited for. */
static void say_it_is_as_before(const struct op *op, enum job_state before,
				struct brumate_error *err)
{
	if (is_too_late(op)) {
		const struct brumate_error why = *err;
		const char *own = strstr(why.hint, "--timeout") ? "" : why.hint;

		progress_say_late(&op->progress, err);
		brumate_error_exit(err, EXIT_TIMEOUT);
		brumate_hint(err, "%s%sa longer --timeout gives it more time; the job %s", own,
			     *own ? "; " : "",
			     before == JOB_SUSPENDED ? "stays suspended" : "goes on");
	} else if (op->touched && op->target->state != JOB_RESUMING) {
		brumate_error_exit(err, EXIT_STILL_RUNNING);
	}
}

int engine_unseen(const struct op *op, int r, struct brumate_error *err)
{
	if (target_ends_now(op->target))
		brumate_error_exit(err, EXIT_NOT_FOUND);
	else
		say_it_is_as_before(op, op->target->state, err);
	return r;
}

int engine_failed(struct op *op, int r, enum job_state if_alive, struct brumate_error *err)
{
	struct target *target = op->target;
	struct brumate_error asked = BRUMATE_ERROR_NONE;
	bool alive = !target_has_ended(target);
	bool whole = alive;

	/* The states are asked for again: what an undo meant to do does not count. */
	if (alive && op->touched && op->gpus.n)
		whole = take_back(op, if_alive, &asked) == 0;
	/* It may have ended over that, or is about to. */
	alive = whole && r != -ESRCH && !reaper_is_alone(target->root) ? !target_has_ended(target)
								       : !target_ends_now(target);
	snprintf(target->message, sizeof(target->message), "%s: %s", op->kind, err->text);
	if (!alive) {
		target->op = (struct job_op){ 0 };
		if (op->touched) /* before that, nothing fails for another reason that has this one */
			brumate_wrap(err, r, "job %s has ended", target->id);
		brumate_error_exit(err, EXIT_NOT_FOUND);
		return r; /* the process that waits for the job records how it ended */
	}
	if (!whole && !op->gpus.driver_refused)
		return leave_half_done(op, r, &asked, err);
	target->op = (struct job_op){ 0 };
	if (!whole) {
		say_stuck(target, r, &asked, err);
		target_set_state(target, JOB_SUSPENDED, NULL);
		return r;
	}
	say_it_is_as_before(op, if_alive, err);
	target_set_state(target, if_alive, NULL);
	return r;
}

/* ---- names of all steps ---- */

enum { NAMES_MAX = 64 };

const char *const *engine_step_names(void)
{
	static const struct {
		const char *kind;
		const struct step *(*plan)(size_t *ret_n);
	} plans[] = {
		{ "suspend", suspend_plan },
		{ "resume", resume_plan },
		{ "checkpoint", checkpoint_plan },
		{ "restore", restore_plan },
	};
	static char text[NAMES_MAX][64];
	static const char *names[NAMES_MAX + 1];
	size_t n = 0;

	for (size_t p = 0; p < sizeof(plans) / sizeof(plans[0]); p++) {
		size_t n_steps;
		const struct step *steps = plans[p].plan(&n_steps);

		for (size_t i = 0; i < n_steps && n < NAMES_MAX; i++, n++) {
			snprintf(text[n], sizeof(text[n]), "%s.%s", plans[p].kind, steps[i].name);
			names[n] = text[n];
		}
	}
	names[n] = NULL;
	return names;
}
