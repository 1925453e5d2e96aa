// SPDX-License-Identifier: MIT
/*
 * What a shim does first when it takes a job over. The record says what was under way; the processes
 * and the driver say how far it came. Forward only where the image is already complete and nothing of
 * the job is left; else back to what the job was before.
 */
#include "engine/engine.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/paths.h"
#include "engine/remote-restore.h"
#include "engine/steps.h"
#include "process/pidns.h"

enum { CRIU_PATIENCE_MS = 120000, KILL_TIMEOUT_MS = 30000 };

/* A CRIU whose caller died fails at its next word to us and lets the tree run on: that is waited for,
 * because to kill it in the middle is what could hurt the job. */
static void await_criu(struct op *op)
{
	struct proc_id criu = op->job->op.criu;

	if (!criu.pid || proc_wait_gone(criu, deadline_in_ms(CRIU_PATIENCE_MS)) == 0)
		return;
	log_warn("CRIU of a dead shim does not end, killing it: job=%s pid=%d", op->job->id,
		 criu.pid);
	if (op->job->state == JOB_CHECKPOINTING && !job_has_ended(op->job))
		return; /* by heal() */
	proc_signal(criu, SIGKILL);
	proc_wait_gone(criu, DEADLINE_NEVER);
}

/* CRIU may have been killed with its caller, or before it. */
static void heal(const struct job *job)
{
	auto_close int dir_fd = job_open_criu_dir(job, NULL);
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (criu_heal(job->root, job->op.criu, dir_fd, JOB_DUMP_LOG, &err) < 0)
		log_error("what CRIU left could not be taken back: job=%s reason=\"%s\"", job->id,
			  err.text);
}

static bool image_is_complete(const struct job *job)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

	return job->op.image_path[0] && store_open(&image, NULL, job->op.image_path, NULL) == 0;
}

static int take_image(struct job *job)
{
	const char *slash = strrchr(job->op.image_path, '/');
	char *id = strdup(slash ? slash + 1 : job->op.image_path),
	     *path = strdup(job->op.image_path);

	if (!id || !path) {
		free(id);
		free(path);
		return -ENOMEM;
	}
	free(job->checkpoint);
	free(job->checkpoint_path);
	job->checkpoint = id;
	job->checkpoint_path = path;
	return 0;
}

static void sweep_store(const struct job *job)
{
	auto_free char *dir = strdup(job->op.image_path);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (!slash)
		return;
	*slash = '\0';
	store_sweep(dir);
}

static int settle_gpus(struct op *op, bool suspended, struct brumate_error *err)
{
	int r = op_find_gpus(op, err);

	if (r < 0)
		return r;
	return suspended ? step_put_away(op, err) : step_bring_back(op, err);
}

static int recover_checkpoint(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	bool complete = image_is_complete(job), was_suspended = job->op.was_suspended;

	if (complete && take_image(job) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	sweep_store(job);
	if (job_has_ended(job)) {
		op_clear_vault(op);
		job->root = PROC_ID_NONE;
		job->init = PROC_ID_NONE;
		job->op = (struct job_op){ 0 };
		return job_set_state(job, complete ? JOB_CHECKPOINTED : JOB_LOST, err);
	}
	if (job->op.criu.pid)
		heal(job);
	int r = settle_gpus(op, was_suspended, err);
	job->op = (struct job_op){ 0 };
	snprintf(job->message, sizeof(job->message),
		 "checkpoint: brumate was interrupted; the job goes on%s",
		 complete ? ", and the checkpoint is complete" : "");
	int saved = job_set_state(job, was_suspended || r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
	return r < 0 ? r : saved;
}

/* The image is as good as before, so a tree half restored is simply taken down, and the job is what it was. */
static int recover_restore(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	auto_free char *status = path_format("%s/%s", job->dir, JOB_NAMESPACE_STATUS);
	enum job_state state = job_state_after_restore(job);

	if (!job_has_ended(job)) {
		if (op_find_gpus(op, NULL) == 0)
			step_discard_gpus(op);
		proc_tree_kill(job->root, deadline_in_ms(KILL_TIMEOUT_MS));
	}
	op_clear_vault(op);
	remote_restore_sweep(job);
	if (status) /* the dead shim may not have come to record it */
		pidns_end_all(status);
	job->root = PROC_ID_NONE;
	job->init = PROC_ID_NONE;
	if (job->op.before == JOB_CREATED && take_image(job) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	job->op = (struct job_op){ 0 };
	snprintf(job->message, sizeof(job->message),
		 "restore: brumate was interrupted; the checkpoint is untouched");
	return job_set_state(job, state, err);
}

static int recover_suspend(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int r = settle_gpus(op, false, err);

	snprintf(job->message, sizeof(job->message),
		 "suspend: brumate was interrupted; the job goes on");
	job->parked = job->parked && r < 0;
	int saved = job_set_state(job, r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
	return r < 0 ? r : saved;
}

static int recover_resume(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int r = settle_gpus(op, false, err); /* forward: running is what was asked for */

	if (r < 0)
		settle_gpus(op, true, NULL);
	snprintf(job->message, sizeof(job->message), "resume: brumate was interrupted");
	job->parked = job->parked && r < 0;
	int saved = job_set_state(job, r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
	return r < 0 ? r : saved;
}

/* Its shim died when the command was recorded, and not yet that it runs. One by its pid is yet to be taken in. */
static bool was_started(const struct job *job)
{
	return !job->by_pid && job->root.pid && !job_has_ended(job);
}

int engine_recover(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;

	await_criu(op);
	switch (job->state) {
	case JOB_CREATED:
		return was_started(job) ? job_set_state(job, JOB_RUNNING, err) : 0;
	case JOB_CHECKPOINTING:
		return recover_checkpoint(op, err);
	case JOB_RESTORING:
		return recover_restore(op, err);
	case JOB_SUSPENDING:
		return !job_has_ended(job) ? recover_suspend(op, err) : 0;
	case JOB_RESUMING:
		return !job_has_ended(job) ? recover_resume(op, err) : 0;
	default:
		return 0; /* nothing was under way; an end of the job is the caller's to record */
	}
}
