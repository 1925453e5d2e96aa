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
#include "engine/together.h"
#include "job/standstill.h"
#include "process/pidns.h"
#include "process/reaper.h"

enum { CRIU_PATIENCE_MS = 120000, RESTORE_PATIENCE_MS = 5000, KILL_TIMEOUT_MS = 30000 };

/* A CRIU whose caller died fails at its next word to us and lets the tree run on: that is waited for,
 * because to kill it in the middle is what could hurt the job. One that restores may be long in coming to a word, and has
 * nothing but what will be taken down: it gets the time to do that itself. */
static int await_criu(struct op *op, struct brumate_error *err)
{
	const uint32_t patience_ms =
		op->target->state == JOB_RESTORING ? RESTORE_PATIENCE_MS : CRIU_PATIENCE_MS;
	struct proc_id criu = op->target->op.criu;
	int r = criu.pid ? proc_wait_gone(criu, deadline_in_ms(patience_ms)) : 0;

	if (r == 0)
		return 0;
	if (r != -ETIMEDOUT)
		return brumate_fail(err, -r, "CRIU, process %d: %m", criu.pid);
	log_warn("CRIU of a dead shim does not end, killing it: job=%s pid=%d", op->target->id,
		 criu.pid);
	if (op->target->state == JOB_CHECKPOINTING && !target_has_ended(op->target))
		return 0; /* by heal() */
	criu_kill_group(criu, op->target->uid);
	r = proc_wait_gone(criu, deadline_in_ms(KILL_TIMEOUT_MS));
	return r < 0 ? brumate_fail(err, -r, "CRIU, process %d: %m", criu.pid) : 0;
}

/* CRIU may have been killed with its caller, or before it. */
static int heal(struct target *target, struct brumate_error *err)
{
	auto_close int dir_fd = target_open_criu_dir(target, NULL);
	int r = criu_heal(target->root, target->op.criu, target->uid, dir_fd, JOB_DUMP_LOG, err);

	if (r < 0)
		return brumate_wrap(err, r, "what CRIU left cannot be taken back");
	target->op.criu = PROC_ID_NONE;
	return 0;
}

/* 1, 0, or -errno where the store cannot be looked at. */
static int image_is_complete(const struct target *target, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

	if (!target->op.image_path[0] || access(target->op.image_path, F_OK) < 0)
		return !target->op.image_path[0] || errno == ENOENT || errno == ENOTDIR
			       ? 0
			       : brumate_fail(err, errno, "%s: %m", target->op.image_path);
	int r = store_open(&image, NULL, target->op.image_path, err);
	return r < 0 ? (r == -EBADMSG || r == -ENOENT ? 0 : r) : 1;
}

static int take_image(struct target *target)
{
	const char *path = target->op.image_path, *slash = strrchr(path, '/');

	return target_name_checkpoint(target, slash ? slash + 1 : path, path);
}

static void sweep_store(const struct target *target)
{
	auto_free char *dir = strdup(target->op.image_path);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (!slash)
		return;
	*slash = '\0';
	store_sweep(dir);
}

static int settle_gpus(struct op *op, bool suspended, struct brumate_error *err)
{
	if (!suspended) /* whom a stop holds nobody can bring back */
		standstill_wake_first(op->target);
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

/* Says in which state the job is, unless it is known from the operation that failed. */
static void say(struct op *op, const char *what, const char *more)
{
	if (strcmp(op->kind, RECOVER_UNDO))
		snprintf(op->target->message, sizeof(op->target->message), "%s%s", what, more);
}

/* The only copy of its device memory is gone, so its processes can never run again: they are ended. */
static int lose(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	int r = target_kill_members(target, deadline_in_ms(KILL_TIMEOUT_MS));

	if (r < 0 && r != -ESRCH)
		return brumate_fail(err, -r, "job %s is lost, and cannot be ended: %m", target->id);
	op_clear_vault(op);
	target_forget_processes(target);
	target->parked = false;
	snprintf(target->message, sizeof(target->message),
		 "its shim and its keeper have both ended, and with them the only copy of its "
		 "device memory");
	log_error("job %s is lost: %s", target->id, target->message);
	return target_set_state(target, JOB_LOST, err);
}

/* Removes the image of a set that will not be. */
static int remove_image(const struct target *target, struct brumate_error *err)
{
	auto_free char *dir = strdup(target->op.image_path);
	char *slash = dir ? strrchr(dir, '/') : NULL;

	if (!slash)
		return dir ? 0 : brumate_fail(err, ENOMEM, "%m");
	*slash = '\0';
	int r = store_remove(dir, slash + 1, err);
	return r == -ENOENT ? 0 : r;
}

/* Whether the image is there and counts: 1, 0, or -errno. Of a set that is not decided yet, it never will. */
static int image_counts(const struct target *target, struct brumate_error *err)
{
	int complete = image_is_complete(target, err), given_up = together_given_up(target);

	if (complete < 0)
		return complete;
	if (given_up < 0)
		return brumate_fail(err, -given_up, "%s: %m", target->op.together);
	if (complete && given_up) {
		int r = remove_image(target, err);

		return r < 0 ? r : 0;
	}
	return complete;
}

/* The others of its set have ended with their checkpoints, so it is to do the same. */
static int end_with_set(struct target *target, struct brumate_error *err)
{
	int r = target_kill_members(target, deadline_in_ms(KILL_TIMEOUT_MS));

	return r < 0 && r != -ESRCH
		       ? brumate_fail(err, -r, "job %s is saved, and cannot be ended: %m",
				      target->id)
		       : 0;
}

static int recover_checkpoint(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	int complete = image_counts(target, err);
	bool was_suspended = target->op.was_suspended;

	if (complete < 0)
		return complete;
	if (complete && target->op.together[0] && !target->op.leave_running &&
	    end_with_set(target, err) < 0)
		return -EAGAIN;
	if (complete && take_image(target) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	sweep_store(target);
	if (target_has_ended(target)) {
		op_clear_vault(op);
		target_forget_processes(target);
		return target_set_state(target, complete ? JOB_CHECKPOINTED : JOB_LOST, err);
	}
	int r = target->op.criu.pid ? heal(target, err) : 0;
	if (r == 0)
		together_let_go(op);
	if (r == 0 && was_suspended && vault_is_lost(op->data.vault))
		return lose(op, err); /* to put away what is away already shows nothing */
	if (r == 0)
		r = settle_gpus(op, was_suspended, err);
	if (may_pass(op, r))
		return r;
	if (r == -ENODATA)
		return lose(op, err);
	target->op = (struct job_op){ 0 };
	say(op, "checkpoint: brumate was interrupted; the job keeps running",
	    complete ? ", and the checkpoint is complete" : "");
	int saved =
		target_set_state(target, was_suspended || r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
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
static bool is_half_built(const struct target *target, const struct manifest_process *p,
			  struct proc_info *ret)
{
	return p->pid > 0 && proc_read(ret, p->pid, NULL) == 0 && ret->is_fork &&
	       (!geteuid() || ret->uid == geteuid()) &&
	       ret->id.start_ticks >= target->op.criu.start_ticks &&
	       is_named_as_built(ret->comm, p);
}

/* A CRIU that was killed with its shim leaves what it was building, as nobody's children, and one that gives up does not
 * wait for the end of what it kills. */
static int end_half_built(const struct target *target)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct proc_info info;
	int r = 0;

	if (!target->op.criu.pid)
		return 0;
	if (store_open(&image, NULL, target->op.image_path, &err) < 0)
		log_warn("cannot tell what CRIU was restoring: job=%s reason=\"%s\"", target->id,
			 err.text);
	for (size_t i = 0; r == 0 && i < image.manifest.n_processes; i++)
		if (is_half_built(target, &image.manifest.processes[i], &info)) {
			log_warn("half restored, and left by CRIU: job=%s pid=%d", target->id,
				 info.id.pid);
			const struct proc_members built = { .root = info.id, .uid = target->uid };

			r = proc_members_kill(&built, deadline_in_ms(KILL_TIMEOUT_MS));
		}
	return r;
}

/* The others of its set are back by now, and of this one all is there but for its gates and connections. 1: it is not, or cannot be. */
static int complete_restore(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;

	if (target_has_ended(target) || target->op.criu.pid)
		return 1;
	int r = together_find_closes(op, err);
	if (r == 0)
		r = settle_gpus(op, false, err);
	if (r < 0)
		return may_pass(op, r) ? r : 1;
	together_let_go(op);
	if (take_image(target) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	op_clear_vault(op);
	target->parked = false;
	target->op = (struct job_op){ 0 };
	say(op, "restore: brumate was interrupted; the job is back, as all of its set", "");
	return target_set_state(target, JOB_RUNNING, err);
}

/* The image is as good as before, so a tree half restored is simply taken down, and the job is what it was. */
static int recover_restore(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	auto_free char *status = path_format("%s/%s", target->dir, JOB_NAMESPACE_STATUS);
	enum job_state state = target_state_after_restore(target);
	int r = together_given_up(target);

	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", target->op.together);
	if (r == 0 && target->op.together[0] && (r = complete_restore(op, err)) <= 0)
		return r;
	r = 0;
	if (!target_has_ended(target)) {
		/* While CRIU builds them the driver has not been asked for anything, and would wait for them for ever. */
		if (!target->op.criu.pid && op_find_gpus(op, NULL) == 0)
			step_discard_gpus(op);
		r = target_kill_members(target, deadline_in_ms(KILL_TIMEOUT_MS));
	}
	if (r == 0)
		r = end_half_built(target);
	if (r == 0) /* the dead shim may not have come to record its init */
		r = status ? pidns_end_all(status) : -ENOMEM;
	if (r < 0)
		return brumate_fail(err, -r, "a half restored job cannot be ended: %m");
	if (target->op.before == JOB_CREATED && take_image(target) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	op_clear_vault(op);
	fetched_sweep(target);
	target_forget_processes(target);
	say(op, "restore: brumate was interrupted; the checkpoint is untouched", "");
	return target_set_state(target, state, err);
}

/* @r: of settle_gpus(): what it could not bring back is suspended. */
static int end_recovered(struct op *op, int r, const char *what, struct brumate_error *err)
{
	struct target *target = op->target;

	say(op, what, "");
	target->parked = target->parked && r < 0;
	int saved = target_set_state(target, r < 0 ? JOB_SUSPENDED : JOB_RUNNING, err);
	return r < 0 ? r : saved;
}

static int recover_suspend(struct op *op, struct brumate_error *err)
{
	int r = settle_gpus(op, false, err);

	if (may_pass(op, r))
		return r;
	if (r == -ENODATA)
		return lose(op, err);
	return end_recovered(op, r, "suspend: brumate was interrupted; the job keeps running", err);
}

static int recover_resume(struct op *op, struct brumate_error *err)
{
	int r = settle_gpus(op, false, err); /* forward: running is what was asked for */
	bool refused = op->gpus.driver_refused;

	if (r == -ENODATA)
		return lose(op, err);
	if (r < 0 && settle_gpus(op, true, NULL) < 0 && !refused)
		return r;
	return end_recovered(op, r, "resume: brumate was interrupted", err);
}

/* Its shim died when the command was recorded, and not yet that it runs. One by its pid is yet to be taken in. */
static bool was_started(const struct target *target)
{
	return target->owned_by->was_started(target) && target->root.pid &&
	       !target_has_ended(target);
}

static int recover(struct op *op, struct brumate_error *err)
{
	struct target *target = op->target;
	int r = fault_point("recover.begin");

	if (r < 0)
		return brumate_fail(err, -r, "injected at recover.begin: %m");
	if ((r = await_criu(op, err)) < 0)
		return r;
	if (!target->command.pid) /* the dead shim may not have come to record it */
		target->command = reaper_find_command(target->root);
	switch (target->state) {
	case JOB_CREATED:
		return was_started(target) ? target_set_state(target, JOB_RUNNING, err) : 0;
	case JOB_CHECKPOINTING:
		return recover_checkpoint(op, err);
	case JOB_RESTORING:
		return recover_restore(op, err);
	case JOB_SUSPENDING:
		return !target_has_ended(target) ? recover_suspend(op, err) : 0;
	case JOB_RESUMING:
		return !target_has_ended(target) ? recover_resume(op, err) : 0;
	case JOB_SUSPENDED:
		return !target_has_ended(target) && vault_is_lost(op->data.vault) ? lose(op, err)
										  : 0;
	default:
		return 0; /* nothing was under way; an end of the job is the caller's to record */
	}
}

int engine_recover(struct op *op, struct brumate_error *err)
{
	bool was_suspended = op->target->state == JOB_SUSPENDED;
	int r = recover(op, err);

	if (!target_has_ended(op->target))
		standstill_renew(op);
	if (r < 0 && !was_suspended && op->target->state != JOB_SUSPENDED)
		say(op, "what was interrupted cannot be put right yet: ", err->text);
	return r;
}
