// SPDX-License-Identifier: MIT
/*
 * What a shim does first when it takes a job over. The record says what was under way; the processes
 * and the driver say how far it came. Forward only where the image is already complete and nothing of
 * the job is left; else back to what the job was before.
 */
#include "engine/engine.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/paths.h"
#include "engine/fetched.h"
#include "engine/steps.h"
#include "job/standstill.h"
#include "process/pidns.h"
#include "process/reaper.h"

enum { CRIU_PATIENCE_MS = 120000, KILL_TIMEOUT_MS = 30000 };

/* A CRIU whose caller died fails at its next word to us and lets the tree run on: that is waited for,
 * because to kill it in the middle is what could hurt the job. */
static int await_criu(struct op *op, struct brumate_error *err)
{
	struct proc_id criu = op->job->op.criu;
	int r = criu.pid ? proc_wait_gone(criu, deadline_in_ms(CRIU_PATIENCE_MS)) : 0;

	if (r == 0)
		return 0;
	if (r != -ETIMEDOUT)
		return brumate_fail(err, -r, "CRIU, process %d: %m", criu.pid);
	log_warn("CRIU of a dead shim does not end, killing it: job=%s pid=%d", op->job->id,
		 criu.pid);
	if (op->job->state == JOB_CHECKPOINTING && !job_has_ended(op->job))
		return 0; /* by heal() */
	proc_signal_as(criu, SIGKILL, op->job->uid);
	r = proc_wait_gone(criu, deadline_in_ms(KILL_TIMEOUT_MS));
	return r < 0 ? brumate_fail(err, -r, "CRIU, process %d: %m", criu.pid) : 0;
}

/* CRIU may have been killed with its caller, or before it. */
static int heal(struct job *job, struct brumate_error *err)
{
	auto_close int dir_fd = job_open_criu_dir(job, NULL);
	int r = criu_heal(job->root, job->op.criu, job->uid, dir_fd, JOB_DUMP_LOG, err);

	if (r < 0)
		return brumate_wrap(err, r, "what CRIU left cannot be taken back");
	job->op.criu = PROC_ID_NONE;
	return 0;
}

/* 1, 0, or -errno where the store cannot be looked at. */
static int image_is_complete(const struct job *job, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

	if (!job->op.image_path[0] || access(job->op.image_path, F_OK) < 0)
		return !job->op.image_path[0] || errno == ENOENT || errno == ENOTDIR
			       ? 0
			       : brumate_fail(err, errno, "%s: %m", job->op.image_path);
	int r = store_open(&image, NULL, job->op.image_path, err);
	return r < 0 ? (r == -EBADMSG || r == -ENOENT ? 0 : r) : 1;
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
	if (!suspended) /* whom a stop holds nobody can bring back */
		standstill_wake_first(op->job);
	int r = op_find_gpus(op, err);

	if (r < 0)
		return r;
	return suspended ? step_put_away(op, err) : step_bring_back(op, err);
}

/* Whether to try again may help: it does not where the driver refuses, or where what is wanted is gone. */
static bool may_pass(const struct op *op, int r)
{
	return r < 0 && r != -ENODATA && !op->gpus.driver_refused;
}

/* Says what became of the job, unless it is known from the operation that failed. */
static void say(struct op *op, const char *what, const char *more)
{
	if (strcmp(op->kind, RECOVER_UNDO))
		snprintf(op->job->message, sizeof(op->job->message), "%s%s", what, more);
}

/* Nothing is left of it, and nothing under way. */
static void forget_processes(struct job *job)
{
	job->root = job->command = job->init = PROC_ID_NONE;
	job->op = (struct job_op){ 0 };
}

/* The only copy of its device memory is gone, so its processes can never run again: they are ended. */
static int lose(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int r = job_kill_members(job, deadline_in_ms(KILL_TIMEOUT_MS));

	if (r < 0 && r != -ESRCH)
		return brumate_fail(err, -r, "job %s is lost, and cannot be ended: %m", job->id);
	op_clear_vault(op);
	forget_processes(job);
	job->parked = false;
	snprintf(job->message, sizeof(job->message),
		 "its shim and its keeper have both ended, and with them the only copy of its "
		 "device memory");
	log_error("job %s is lost: %s", job->id, job->message);
	return job_set_state(job, JOB_LOST, err);
}

static int recover_checkpoint(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int complete = image_is_complete(job, err);
	bool was_suspended = job->op.was_suspended;

	if (complete < 0)
		return complete;
	if (complete && take_image(job) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	sweep_store(job);
	if (job_has_ended(job)) {
		op_clear_vault(op);
		forget_processes(job);
		return job_set_state(job, complete ? JOB_CHECKPOINTED : JOB_LOST, err);
	}
	int r = job->op.criu.pid ? heal(job, err) : 0;
	if (r == 0 && was_suspended && vault_is_lost(op->data.vault))
		return lose(op, err); /* to put away what is away already shows nothing */
	if (r == 0)
		r = settle_gpus(op, was_suspended, err);
	if (may_pass(op, r))
		return r;
	if (r == -ENODATA)
		return lose(op, err);
	job->op = (struct job_op){ 0 };
	say(op, "checkpoint: brumate was interrupted; the job keeps running",
	    complete ? ", and the checkpoint is complete" : "");
	int saved = job_set_state(job, was_suspended || r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
	return r < 0 ? r : saved;
}

/* What CRIU is building has CRIU's name, and at last that of the process that it restores. The one that we provide runs by its
 * loader. */
static bool is_named_as_built(const char *comm, const struct manifest_process *p)
{
	return !strcmp(comm, p->comm) || !strcmp(comm, "criu") ||
	       !strncmp(comm, "ld-linux", strlen("ld-linux"));
}

/* Has the id of @p, is younger than the CRIU that was to make it, and was forked, as CRIU makes processes. */
static bool is_half_built(const struct job *job, const struct manifest_process *p,
			  struct proc_info *ret)
{
	return p->pid > 0 && proc_read(ret, p->pid, NULL) == 0 && ret->is_fork &&
	       (!geteuid() || ret->uid == geteuid()) &&
	       ret->id.start_ticks >= job->op.criu.start_ticks && is_named_as_built(ret->comm, p);
}

/* A CRIU that was killed with its shim leaves what it was building, as nobody's children, and one that gives up does not
 * wait for the end of what it kills. */
static int end_half_built(const struct job *job)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct proc_info info;
	int r = 0;

	if (!job->op.criu.pid)
		return 0;
	if (store_open(&image, NULL, job->op.image_path, &err) < 0)
		log_warn("cannot tell what CRIU was restoring: job=%s reason=\"%s\"", job->id,
			 err.text);
	for (size_t i = 0; r == 0 && i < image.manifest.n_processes; i++)
		if (is_half_built(job, &image.manifest.processes[i], &info)) {
			log_warn("half restored, and left by CRIU: job=%s pid=%d", job->id,
				 info.id.pid);
			const struct proc_members built = { .root = info.id, .uid = job->uid };

			r = proc_members_kill(&built, deadline_in_ms(KILL_TIMEOUT_MS));
		}
	return r;
}

/* The image is as good as before, so a tree half restored is simply taken down, and the job is what it was. */
static int recover_restore(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	auto_free char *status = path_format("%s/%s", job->dir, JOB_NAMESPACE_STATUS);
	enum job_state state = job_state_after_restore(job);
	int r = 0;

	if (!job_has_ended(job)) {
		/* While CRIU builds them the driver has not been asked for anything, and would wait for them in vain. */
		if (!job->op.criu.pid && op_find_gpus(op, NULL) == 0)
			step_discard_gpus(op);
		r = job_kill_members(job, deadline_in_ms(KILL_TIMEOUT_MS));
	}
	if (r == 0)
		r = end_half_built(job);
	if (r == 0) /* the dead shim may not have come to record its init */
		r = status ? pidns_end_all(status) : -ENOMEM;
	if (r < 0)
		return brumate_fail(err, -r, "a half restored job cannot be ended: %m");
	if (job->op.before == JOB_CREATED && take_image(job) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	op_clear_vault(op);
	fetched_sweep(job);
	forget_processes(job);
	say(op, "restore: brumate was interrupted; the checkpoint is untouched", "");
	return job_set_state(job, state, err);
}

static int recover_suspend(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int r = settle_gpus(op, false, err);

	if (may_pass(op, r))
		return r;
	if (r == -ENODATA)
		return lose(op, err);
	say(op, "suspend: brumate was interrupted; the job keeps running", "");
	job->parked = job->parked && r < 0;
	int saved = job_set_state(job, r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
	return r < 0 ? r : saved;
}

static int recover_resume(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int r = settle_gpus(op, false, err); /* forward: running is what was asked for */
	bool refused = op->gpus.driver_refused;

	if (r == -ENODATA)
		return lose(op, err);
	if (r < 0 && settle_gpus(op, true, NULL) < 0 && !refused)
		return r;
	say(op, "resume: brumate was interrupted", "");
	job->parked = job->parked && r < 0;
	int saved = job_set_state(job, r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
	return r < 0 ? r : saved;
}

/* Its shim died when the command was recorded, and not yet that it runs. One by its pid is yet to be taken in. */
static bool was_started(const struct job *job)
{
	return !job->by_pid && job->root.pid && !job_has_ended(job);
}

static int recover(struct op *op, struct brumate_error *err)
{
	struct job *job = op->job;
	int r = fault_point("recover.begin");

	if (r < 0)
		return brumate_fail(err, -r, "injected at recover.begin: %m");
	if ((r = await_criu(op, err)) < 0)
		return r;
	if (!job->command.pid) /* the dead shim may not have come to record it */
		job->command = reaper_find_command(job->root);
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
	case JOB_SUSPENDED:
		return !job_has_ended(job) && vault_is_lost(op->data.vault) ? lose(op, err) : 0;
	default:
		return 0; /* nothing was under way; an end of the job is the caller's to record */
	}
}

int engine_recover(struct op *op, struct brumate_error *err)
{
	bool was_suspended = op->job->state == JOB_SUSPENDED;
	int r = recover(op, err);

	if (!job_has_ended(op->job))
		standstill_renew(op);
	if (r < 0 && !was_suspended && op->job->state != JOB_SUSPENDED)
		say(op, "what was interrupted cannot be put right yet: ", err->text);
	return r;
}
