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

struct owner {
	struct shim *shim;
	struct loop_source process;
	int fd;	   /* pidfd of the process that the job ends with; -1: there is none */
	bool gone; /* it has ended, and the job has yet to */
	struct loop_task task;
};

static int end_processes(struct shim *s, struct brumate_error *err)
{
	auto_(op_fini) struct op op;
	struct job *job = &s->job;

	shim_op_init(s, &op, "end");
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

/* As the operation that owner_update() has begun. */
static void end_abandoned(void *arg)
{
	struct shim *s = ((struct owner *)arg)->shim;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	log_info("nobody needs job %s any more: ending it", s->job.id);
	if (end_and_remove(s, &err) >= 0) {
		shim_leave(s);
	} else {
		log_error("the abandoned job %s stays: reason=\"%s\"", s->job.id, err.text);
		shim_end(s);
	}
}

static void note_gone(void *arg)
{
	struct owner *o = arg;

	loop_watch(&o->process, -1, 0);
	cleanup_close(&o->fd);
	o->gone = true;
}

/* An operation under way ends first. */
static void owner_update(void *part)
{
	struct owner *o = part;
	struct shim *s = o->shim;

	if (!o->gone || s->view.use != SHIM_FREE || shim_begin_now(s, "end", 0, NULL) < 0)
		return;
	o->gone = false;
	int r = loop_task_start(s->loop, &o->task, end_abandoned, NULL, o);
	if (r < 0) {
		log_error("the abandoned job %s stays: no thread: reason=\"%s\"", s->job.id,
			  strerror(-r));
		shim_end(s);
	}
}

static void owner_start(void *part, struct shim *s)
{
	struct owner *o = part;
	int fd = s->job.owner.pid && !job_is_abandoned(&s->job) ? proc_open(s->job.owner) : -1;

	o->shim = s;
	o->fd = fd < 0 ? -1 : fd;
	o->gone = o->fd < 0 && s->job.owner.pid && job_is_abandoned(&s->job);
	loop_add(s->loop, &o->process, note_gone, o);
	loop_watch(&o->process, o->fd, POLLIN);
}

static bool owner_needs_shim(const void *part)
{
	const struct owner *o = part;

	return o->fd >= 0 || o->gone || loop_task_works(&o->task);
}

static void owner_stop(void *part)
{
	cleanup_close(&((struct owner *)part)->fd);
}

const struct shim_part owner_part = {
	.size_bytes = sizeof(struct owner),
	.start = owner_start,
	.update = owner_update,
	.needs_shim = owner_needs_shim,
	.stop = owner_stop,
};
