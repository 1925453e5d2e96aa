// SPDX-License-Identifier: MIT
/* Suspend and resume: GPUs emptied into the memory of their processes, and filled again. */
#include "engine/engine.h"

#include <errno.h>

#include "base/log.h"
#include "datapath/park.h"
#include "datapath/move.h"
#include "engine/gpu-set.h"
#include "engine/steps.h"
#include "gpu/vendor.h"

/* ---- suspend ---- */

static int refuse_idle(struct op *op, struct brumate_error *err)
{
	brumate_fail(err, ENODATA, "job %s has no GPU state to suspend", op->target->id);
	brumate_hint(err, "none of its processes has initialised the driver (yet)");
	brumate_error_exit(err, EXIT_UNSUPPORTED);
	return -ENODATA;
}

/* Those that began or ended meanwhile are known now. */
static int suspend_gate(struct op *op, struct brumate_error *err)
{
	int r = step_gate(op, err);

	if (r < 0 || op->gpus.n)
		return r;
	return target_ends_now(op->target)
		       ? brumate_fail(err, ESRCH, "job %s has ended", op->target->id)
		       : refuse_idle(op, err);
}

static int check_suspend(struct op *op, struct brumate_error *err)
{
	if (!op->gpus.n && target_ends_now(op->target)) /* since it was looked at */
		return brumate_fail(err, ESRCH, "job %s has ended", op->target->id);
	/* One that is being initialised has some by the time its gate is closed. */
	if (!op->gpus.n && !op->data.n_agents)
		return refuse_idle(op, err);
	int r = gpu_set_check_suspend(&op->gpus, err);
	return r < 0 ? r : preflight(op, SCAN_GPU, err);
}

/* Where the broker cannot copy, nothing was released yet: the job gets its memory back, and the driver moves it. */
static int suspend_data_out(struct op *op, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = step_data(op, &why);

	if (r >= 0)
		return r;
	/* The driver would put what has no room into memory anyway. */
	if (r == -ECANCELED || r == -ETIMEDOUT || r == -ENOSPC) {
		*err = why;
		return r;
	}
	progress_note(&op->progress, "%s: the driver alone moves device memory", why.text);
	log_warn("the data path failed, the driver takes over: job=%s reason=\"%s\"",
		 op->target->id, why.text);
	if ((r = step_bring_back(op, err)) < 0)
		return r;
	datapath_drop_agents(&op->data);
	op->data.sums.bytes = 0;
	/* Into memory of the job, which nobody has asked about yet. */
	if ((r = op_find_gpus(op, err)) < 0 || (r = preflight_memory(op, err)) < 0)
		return brumate_wrap(err, r, "%s; and by the driver", why.text);
	if ((r = step_gpu_lock(op, err)) < 0)
		return r;
	return step_gpu_checkpoint(op, err);
}

/* The driver's call cannot be cut short: who cancelled meanwhile gets the job back as it was. */
static int settle(struct op *op, struct brumate_error *err)
{
	struct vault *v = op->data.vault;
	int r = progress_check(&op->progress, err);

	if (r < 0)
		return r;
	op->target->parked = op->request->park && v && v->n_pieces;
	if (v && v->copied)
		vault_drop_device(v);
	park_detach(&op->data);
	return 0;
}

static const struct step suspend_steps[] = {
	{ "identify", "the driver", step_identify, NULL },
	{ "preflight", "the scan of the job's processes", check_suspend, NULL },
	{ "gate", "calls and kernels in flight", suspend_gate, step_undo_park },
	{ "park", "the job's agents", step_park, step_undo_park },
	{ "copy", "nothing", step_copy_out, step_undo_copy },
	{ "unmap", "the job's agents", step_unmap, NULL },
	{ "gpu-lock", "calls and kernels in flight", step_gpu_lock, step_undo_gpu },
	{ "gpu-checkpoint", "device memory to reach host memory", step_gpu_checkpoint,
	  step_undo_gpu },
	{ "stop-others", "the job's processes to stop", step_stop_others, step_undo_stop },
	{ "data-out", "device memory to reach host memory", suspend_data_out, step_undo_copy },
	{ "settle", "nothing", settle, NULL },
	{ "stop", "the job's processes to stop", step_stop, step_undo_stop },
};

int engine_suspend(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	int r = op_check_thawed(op, err);

	if (r < 0)
		return r;
	r = target_set_state(target, JOB_SUSPENDING, err);
	if (r == 0)
		r = plan_run(suspend_steps, sizeof(suspend_steps) / sizeof(suspend_steps[0]), op,
			     err);
	if (r < 0)
		return engine_failed(op, r, JOB_RUNNING, err);
	target->message[0] = '\0';
	engine_done(op, JOB_SUSPENDED);
	return 0;
}

/* ---- resume ---- */

static int check_resume(struct op *op, struct brumate_error *err)
{
	int r = gpu_set_is_asleep(&op->gpus) ? 0 : park_check(&op->data, err);

	if (r == 0)
		r = placement_map(op->target, &op->gpus, &op->progress, err);
	if (r < 0)
		return r;
	op->data.pairs = op->gpus.pairs;
	op->data.n_pairs = op->gpus.n_pairs;
	return placement_wait_room(op, err);
}

/* Starts filling fresh device memory from the host copy, unless the vault has device memory. */
static int copy_in(struct op *op, struct brumate_error *err)
{
	const struct vault *v = op->data.vault;

	if (!v || !v->n_pieces || vault_has_device(v))
		return 1;
	int r = move_start_in(&op->data, NULL, err);
	return r < 0 ? r : 1;
}

enum { HEAD_START_MS_MAX = 400 };

/* Waits until all device memory is made, as long as the copy will outlast the driver's part anyway: the driver takes
 * turns between processes, so what is made during its restore is made late, and the copy waits for it. */
static int make(struct op *op, struct brumate_error *err)
{
	const struct gpu_tuning *best = &op->gpus.vendor->tuning;
	uint64_t data_ms = move_total_bytes(&op->data) / best->link_bytes_per_ms;

	if (data_ms <= best->control_ms)
		return 1;
	uint64_t spare_ms = data_ms - best->control_ms;
	move_wait_made(&op->data,
		       (uint32_t)(spare_ms < HEAD_START_MS_MAX ? spare_ms : HEAD_START_MS_MAX));
	return 0;
}

static int resume_gpu_restore(struct op *op, struct brumate_error *err)
{
	op->touched = true;
	op->progress.stopped_ns = op->progress.start_ns;
	op->data.sums.bytes = op->data.vault ? vault_bytes(op->data.vault) : 0;
	move_measure(&op->data);
	return gpu_set_restore_suspended(&op->gpus, err);
}

static void undo_resume(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->touched && step_put_away(op, &err) < 0)
		log_error("GPU state could not be put away again: job=%s reason=\"%s\"",
			  op->target->id, err.text);
}

/* Fresh device memory that was filled is given back; parked memory is all there is. */
static void undo_data_in(struct op *op)
{
	step_undo_copy(op);
	if (op->data.vault && op->data.vault->copied)
		vault_drop_device(op->data.vault);
}

static const struct step resume_steps[] = {
	{ "identify", "the driver", step_identify, NULL },
	{ "preflight", "free device memory", check_resume, NULL },
	{ "copy", "nothing", copy_in, step_undo_copy },
	{ "make", "device memory to be made", make, NULL },
	{ "continue", "the job's agents", step_continue, NULL },
	{ "gpu-restore", "host memory to reach device memory", resume_gpu_restore, undo_resume },
	{ "gpu-unlock", "the driver", step_gpu_unlock, undo_resume },
	{ "map-ahead", "host memory to reach device memory", step_map_early, step_undo_map },
	{ "data-in", "host memory to reach device memory", step_data, undo_data_in },
	{ "map", "the job's agents", step_map, step_undo_map },
	{ "open", "the job's agents", step_open, step_undo_map },
	{ "continue-others", "the processes that were stopped", step_continue_others, NULL },
};

/* What driver 580 refused to restore once, it refuses for ever (docs/driver-behaviour.md); a refused
 * map of GPUs is the exception. */
static void say_lost(const struct target *target, struct brumate_error *err)
{
	brumate_error_exit(err, EXIT_JOB_LOST);
	brumate_hint(err,
		     "what the driver refuses it refuses for good: the job is lost; end it with "
		     "`brumate kill %s`%s%s",
		     target->id, target->checkpoint ? " and restore " : "",
		     target->checkpoint ? target->checkpoint : "");
}

int engine_resume(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;

	int r = op_check_thawed(op, err);

	if (r < 0)
		return r;
	op->data.keep.drop = !op->request->keep_copy;
	r = target_set_state(target, JOB_RESUMING, err);
	if (r == 0)
		r = plan_run(resume_steps, sizeof(resume_steps) / sizeof(resume_steps[0]), op, err);
	if (r < 0) {
		engine_failed(op, r, JOB_SUSPENDED, err);
		standstill_renew(op);
		if (op->gpus.driver_refused && !op->gpus.n_pairs && !target_has_ended(target))
			say_lost(target, err);
		return r;
	}
	target->message[0] = '\0';
	target->parked = false;
	engine_done(op, JOB_RUNNING);
	return 0;
}

const struct step *suspend_plan(size_t *ret_n)
{
	*ret_n = sizeof(suspend_steps) / sizeof(suspend_steps[0]);
	return suspend_steps;
}

const struct step *resume_plan(size_t *ret_n)
{
	*ret_n = sizeof(resume_steps) / sizeof(resume_steps[0]);
	return resume_steps;
}
