// SPDX-License-Identifier: MIT
/*
 * A job that lives as long as another process, its owner, such as `brumate bench`: once that process has gone, however
 * it ended, the job is ended, and its record, its log and its checkpoint are removed. A pidfd reports the end; an
 * operation under way ends first, as its caller has hung up.
 */
#include "shim/shim.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/steps.h"

enum { KILL_TIMEOUT_MS = 30000 };

static int end_processes(struct shim *s, struct brumate_error *err)
{
	auto_(op_fini) struct op op;
	const struct progress_caller nobody = { 0 };
	struct job *job = &s->job;

	op_init(&op, "end", &job->target, &nobody, NULL);
	op.data.vault = &s->vault;
	if (!job->root.pid || job_has_ended(job))
		return 0;
	/* Off the GPU first, as kill does it. */
	if (job->state == JOB_RUNNING && job->restored && op_find_gpus(&op, NULL) == 0)
		step_discard_gpus(&op);
	int r = target_kill_members(&job->target, deadline_in_ms(KILL_TIMEOUT_MS));
	return r < 0 && r != -ESRCH ? brumate_fail(err, -r, "its processes: %m") : 0;
}

static void remove_checkpoint(const struct job *job)
{
	auto_free char *dir = job->checkpoint_path ? strdup(job->checkpoint_path) : NULL;
	char *slash = dir ? strrchr(dir, '/') : NULL;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (!slash || dir[0] != '/')
		return;
	*slash = '\0';
	if (store_remove(dir, slash + 1, &err) < 0 && err.code != ENOENT)
		log_warn("the checkpoint of an abandoned job stays: job=%s reason=\"%s\"", job->id,
			 err.text);
}

static int end_and_remove(struct shim *s, struct brumate_error *err)
{
	int r = end_processes(s, err);

	if (r < 0)
		return r;
	vault_clear(&s->vault, &s->job.target);
	remove_checkpoint(&s->job);
	return job_remove(&s->job, true, err);
}

static void *end_abandoned(void *arg)
{
	struct shim *s = arg;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	/* Each try waits a moment for the operation under way. */
	while (shim_begin(s, "end", 0, &err) < 0)
		if (s->left)
			return NULL;
	log_info("nobody needs job %s any more: ending it", s->job.id);
	if (end_and_remove(s, &err) >= 0) {
		shim_leave(s);
	} else {
		log_error("the abandoned job %s stays: reason=\"%s\"", s->job.id, err.text);
		shim_end(s);
	}
	s->owner.task.state = TASK_DONE;
	return NULL;
}

void owner_gone(struct shim *s)
{
	struct shim_owner *o = &s->owner;

	cleanup_close(&o->fd);
	if (o->task.state != TASK_NONE)
		return;
	int r = task_start(&o->task, end_abandoned, s);
	if (r < 0)
		log_error("the abandoned job %s stays: no thread: reason=\"%s\"", s->job.id,
			  strerror(-r));
}

void owner_init(struct shim *s)
{
	s->owner.fd = -1;
	if (!s->job.owner.pid)
		return;
	if (!job_is_abandoned(&s->job)) {
		int fd = proc_open(s->job.owner);

		s->owner.fd = fd < 0 ? -1 : fd;
	}
	if (s->owner.fd < 0 && job_is_abandoned(&s->job))
		owner_gone(s);
}

bool owner_needs_shim(const struct shim *s)
{
	return s->owner.fd >= 0 || s->owner.task.state == TASK_WORKING;
}

void owner_fini(struct shim *s)
{
	task_join(&s->owner.task);
	cleanup_close(&s->owner.fd);
}
