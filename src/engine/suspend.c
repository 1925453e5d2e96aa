// SPDX-License-Identifier: MIT
/* Suspend and resume: GPUs emptied into the memory of their processes, and filled again. */
#include "engine/engine.h"

#include <errno.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/copy.h"
#include "datapath/vault.h"
#include "engine/live.h"
#include "engine/park.h"
#include "engine/steps.h"

enum { END_TIMEOUT_MS = 200 };

/* ---- steps that checkpoint shares ---- */

int step_identify(struct op *op, struct brumate_error *err)
{
	if (!job_is_alive(op->job))
		return brumate_fail(err, ESRCH, "job %s has ended", op->job->id);
	int r = op_find_gpus(op, err);
	if (r == 0)
		park_find(op);
	op->gpu_bytes = gpu_set_bytes(&op->gpus);
	return r;
}

int step_gpu_lock(struct op *op, struct brumate_error *err)
{
	uint32_t timeout_ms = progress_left_ms(&op->progress, op->lock_timeout_ms);

	if (op->was_suspended || !op->gpus.n)
		return 1;
	if (!op->progress.stopped_ns)
		op->progress.stopped_ns = clock_now_ns();
	op->touched = true;
	return gpu_set_act(&op->gpus, DEV_LOCK, DEV_STATE_LOCKED, timeout_ms, err);
}

int step_gpu_checkpoint(struct op *op, struct brumate_error *err)
{
	if (op->was_suspended || !op->gpus.n)
		return 1;
	if (copy_is_on(op))
		progress_measure(&op->progress, copy_measure, op, copy_total_bytes(op));
	else
		progress_measure(&op->progress, gpu_set_measure_host, &op->gpus, op->gpu_bytes);
	/* With agents this was done before any memory was taken out. */
	int r = op->n_agents ? 0 : record_gpus(op, err);
	if (r < 0)
		return r;
	return gpu_set_act(&op->gpus, DEV_DO_CHECKPOINT, DEV_STATE_CHECKPOINTED,
			   GPU_SET_DRIVER_TIMEOUT_MS, err);
}

void step_undo_gpu(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->was_suspended || !op->touched)
		return;
	if (gpu_set_bring_back(&op->gpus, &err) < 0)
		log_error("GPU state could not be brought back: job=%s reason=\"%s\"", op->job->id,
			  err.text);
	op->progress.released_ns = clock_now_ns();
}

int step_bring_back(struct op *op, struct brumate_error *err)
{
	int r = gpu_set_bring_back(&op->gpus, err);

	return r < 0 ? r : park_return(op, err);
}

/* An agent can only take memory out while the driver lets its process work. */
int step_put_away(struct op *op, struct brumate_error *err)
{
	int r = gpu_set_is_running(&op->gpus) ? park_put_away(op, err) : 0;

	return r < 0 ? r : gpu_set_put_away(&op->gpus, err);
}

/* ---- what a failure left ---- */

/* A process that is being killed loses what it has on the GPU a moment before it is gone. */
static bool ends_now(const struct job *job)
{
	return !job_is_alive(job) || proc_wait_gone(job->root, deadline_in_ms(END_TIMEOUT_MS)) == 0;
}

int engine_failed(struct op *op, int r, enum job_state if_alive, struct brumate_error *err)
{
	struct job *job = op->job;
	struct brumate_error asked = BRUMATE_ERROR_NONE;
	bool alive = job_is_alive(job);
	bool whole = alive;

	/* The states are asked for anew: what an undo meant to do does not count. */
	if (alive && op->touched && op->gpus.n)
		whole = (if_alive == JOB_SUSPENDED ? step_put_away(op, &asked)
						   : step_bring_back(op, &asked)) == 0;
	alive = whole ? job_is_alive(job) : !ends_now(job); /* it may have ended over that */
	snprintf(job->message, sizeof(job->message), "%s: %s", op->kind, err->text);
	if (!alive) {
		brumate_error_exit(err, EXIT_NOT_FOUND);
		return r; /* whoever waits for the job records how it ended */
	}
	if (!whole) {
		brumate_wrap(err, r, "job %s is stuck: %s", job->id, asked.text);
		brumate_error_exit(err, EXIT_JOB_LOST);
		brumate_hint(err,
			     "its GPU state is held by the driver; try `brumate resume %s`, or end "
			     "it with `brumate kill %s`",
			     job->id, job->id);
		job_set_state(job, JOB_SUSPENDED, NULL);
		return r;
	}
	if (op->touched && job->state != JOB_RESUMING)
		brumate_error_exit(err, EXIT_STILL_RUNNING);
	job_set_state(job, if_alive, NULL);
	return r;
}

/* ---- suspend ---- */

static int check_suspend(struct op *op, struct brumate_error *err)
{
	if (!op->gpus.n && ends_now(op->job)) /* since it was looked at */
		return brumate_fail(err, ESRCH, "job %s has ended", op->job->id);
	if (!op->gpus.n) {
		brumate_fail(err, EOPNOTSUPP, "job %s has no GPU state to suspend", op->job->id);
		brumate_hint(err, "none of its processes has initialised the driver (yet)");
		return -EOPNOTSUPP;
	}
	return preflight(op, SCAN_GPU, err);
}

/* Where the broker cannot copy, nothing was let go yet: the job gets its memory back, and the driver
 * moves it. */
static int suspend_data_out(struct op *op, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = step_data_out(op, &why);

	if (r >= 0)
		return r;
	/* What has no room the driver would put into memory all the same. */
	if (r == -ECANCELED || r == -ETIMEDOUT || r == -ENOSPC) {
		*err = why;
		return r;
	}
	progress_note(&op->progress, "%s: all device memory goes by the driver alone", why.text);
	log_warn("the data path failed, the driver takes over: job=%s reason=\"%s\"", op->job->id,
		 why.text);
	if ((r = step_bring_back(op, err)) < 0)
		return r;
	op_drop_agents(op);
	op->data_bytes = 0;
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
	struct vault *h = op->vault;
	int r = progress_check(&op->progress, err);

	if (r < 0)
		return r;
	op->job->parked = op->request->park && h && h->n_pieces;
	if (h && h->copied)
		vault_drop_device(h);
	park_detach(op);
	return 0;
}

static const struct step suspend_steps[] = {
	{ "identify", "the driver", step_identify, NULL },
	{ "preflight", "the scan of the job's processes", check_suspend, NULL },
	{ "live", "the copy of a running job", step_live, step_undo_live },
	{ "gate", "calls and kernels in flight", step_gate, step_undo_park },
	{ "park", "the job's agents", step_park, step_undo_park },
	{ "copy", "nothing", step_copy_out, step_undo_copy },
	{ "unmap", "the job's agents", step_unmap, NULL },
	{ "gpu-lock", "calls and kernels in flight", step_gpu_lock, step_undo_gpu },
	{ "gpu-checkpoint", "device memory to reach host memory", step_gpu_checkpoint,
	  step_undo_gpu },
	{ "data-out", "device memory to reach host memory", suspend_data_out, step_undo_copy },
	{ "settle", "nothing", settle, NULL },
};

int engine_suspend(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int r = job_set_state(job, JOB_SUSPENDING, err);

	if (r == 0)
		r = plan_run(suspend_steps, sizeof(suspend_steps) / sizeof(suspend_steps[0]), op,
			     err);
	if (r < 0)
		return engine_failed(op, r, JOB_RUNNING, err);
	job->message[0] = '\0';
	return job_set_state(job, JOB_SUSPENDED, err);
}

/* ---- resume ---- */

static int check_resume(struct op *op, struct brumate_error *err)
{
	int r = park_check(op, err);

	if (r == 0)
		r = restore_map_gpus(op, err);
	return r < 0 ? r : restore_check_vram(op, err);
}

static int resume_gpu_restore(struct op *op, struct brumate_error *err)
{
	op->touched = true;
	op->progress.stopped_ns = op->progress.start_ns;
	op->data_bytes = op->vault ? vault_bytes(op->vault) : 0;
	if (copy_is_on(op))
		progress_measure(&op->progress, copy_measure, op, copy_total_bytes(op));
	return gpu_set_restore_suspended(&op->gpus, err);
}

static uint64_t job_gpu_bytes(const struct job *job)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < job->n_gpus; i++)
		sum += job->gpus[i].bytes;
	return sum;
}

int step_gpu_unlock(struct op *op, struct brumate_error *err)
{
	if (!op->gpus.n)
		return 1;
	int r = gpu_set_act(&op->gpus, DEV_UNLOCK, DEV_STATE_RUNNING, GPU_SET_DRIVER_TIMEOUT_MS,
			    err);

	if (!op->n_agents && !copy_is_on(op))
		op->progress.released_ns = clock_now_ns();
	if (r == 0 && op_find_gpus(op, NULL) == 0)
		op->gpu_bytes = op->n_agents || copy_is_on(op) ? job_gpu_bytes(op->job)
							       : gpu_set_bytes(&op->gpus);
	return r;
}

static void undo_resume(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->touched && step_put_away(op, &err) < 0)
		log_error("GPU state could not be put away again: job=%s reason=\"%s\"",
			  op->job->id, err.text);
}

/* Fresh device memory that was filled is given back; parked memory is all there is. */
static void undo_data_in(struct op *op)
{
	step_undo_copy(op);
	if (op->vault && op->vault->copied)
		vault_drop_device(op->vault);
}

static const struct step resume_steps[] = {
	{ "identify", "the driver", step_identify, NULL },
	{ "preflight", "free device memory", check_resume, NULL },
	{ "copy", "nothing", step_copy_in, step_undo_copy },
	{ "make", "device memory to be made", step_make, NULL },
	{ "gpu-restore", "host memory to reach device memory", resume_gpu_restore, undo_resume },
	{ "gpu-unlock", "the driver", step_gpu_unlock, undo_resume },
	{ "map-ahead", "host memory to reach device memory", step_map_ahead, step_undo_map },
	{ "data-in", "host memory to reach device memory", step_data_in, undo_data_in },
	{ "map", "the job's agents", step_map, step_undo_map },
	{ "open", "the job's agents", step_open, step_undo_map },
};

/* What driver 580 refused to restore once, it refuses for ever (docs/driver-behaviour.md); a refused
 * map of GPUs is the exception. */
static void say_lost(const struct job *job, struct brumate_error *err)
{
	brumate_error_exit(err, EXIT_JOB_LOST);
	brumate_hint(err,
		     "what the driver refuses it refuses for good: the job is lost; end it with "
		     "`brumate kill %s`%s%s",
		     job->id, job->checkpoint ? " and restore " : "",
		     job->checkpoint ? job->checkpoint : "");
}

int engine_resume(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;

	op->drop_kept = !op->keep_copy;
	int r = job_set_state(job, JOB_RESUMING, err);

	if (r == 0)
		r = plan_run(resume_steps, sizeof(resume_steps) / sizeof(resume_steps[0]), op, err);
	if (r < 0) {
		engine_failed(op, r, JOB_SUSPENDED, err);
		if (op->gpus.driver_refused && !op->gpus.n_pairs && job_is_alive(job))
			say_lost(job, err);
		return r;
	}
	job->message[0] = '\0';
	job->parked = false;
	return job_set_state(job, JOB_RUNNING, err);
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
