// SPDX-License-Identifier: MIT
/*
 * What could not be finished is tried again, for as long as it takes: taking over what a predecessor held, an
 * operation whose undo failed, a record that could not be written. The loop has a timer, each pause is twice as
 * long as the one before, and there is a thread only while it is tried. Nobody has to call for that.
 */
#include "shim/shim.h"

#include <string.h>

#include "base/log.h"

enum { FIRST_PAUSE_MS = 5, PAUSE_MS_MAX = 30000 };

bool mend_wants_keeper(const struct shim *s)
{
	return s->job.root.pid && (s->vault.n_pieces || s->vault.baseline.n_pieces ||
				   s->job.schedule.every_ms || job_state_is_passing(s->job.state));
}

static bool lacks_keeper(const struct shim *s)
{
	return mend_wants_keeper(s) && vault_is_alone(&s->vault) && !job_has_ended(&s->job);
}

bool mend_is_wanted(const struct shim *s)
{
	return s->held.unknown || job_state_is_passing(s->job.state) || s->job.unsaved ||
	       lacks_keeper(s);
}

static void get_keeper(struct shim *s)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (vault_guard(&s->vault, &s->job.target, &err) == 0)
		return;
	log_error("%s: job=%s reason=\"%s\"",
		  s->vault.n_pieces ? "device memory is held by the shim alone"
				    : "nobody would start another shim",
		  s->job.id, err.text);
}

void mend_secure(struct shim *s)
{
	if (s->job.root.pid && vault_is_alone(&s->vault))
		get_keeper(s);
}

/* Nothing of it is only in a vault: a table names at most what spares the next copy some work. */
static bool has_all_it_is(const struct job *job)
{
	return job->state == JOB_RUNNING || !job->root.pid || job_has_ended(job);
}

/* Reads what the job has outside its processes, unless that is known. A table that cannot be read does not make it
 * nothing. */
static int take_vault(struct shim *s, struct op *op, struct brumate_error *err)
{
	if (!s->held.unknown)
		return 0;
	int r = vault_load(&s->vault, op->target, err);
	if (r == -EBADMSG && has_all_it_is(&s->job)) {
		log_error("memory of job %s that is held is not known: reason=\"%s\"", s->job.id,
			  err->text);
		r = 0;
	}
	s->held.unknown = r < 0;
	if (r < 0)
		s->held.why = *err;
	return r;
}

void mend_job(struct shim *s, const char *kind)
{
	auto_(op_fini) struct op op;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	shim_op_init(s, &op, kind);
	int r = take_vault(s, &op, &err);
	if (r == 0)
		r = engine_recover(&op, &err);
	if (r < 0)
		log_error("job %s could not be put right: reason=\"%s\"", s->job.id, err.text);
	if (s->job.unsaved && job_save(&s->job, &err) == 0)
		log_info("the record is on disk again: job=%s", s->job.id);
	if (!s->held.unknown && lacks_keeper(s))
		get_keeper(s);
}

struct mend {
	struct shim *shim;
	struct loop_source timer;
	struct loop_task task;
	uint64_t pause_ms; /* before the next try */
};

static void try_again(void *arg)
{
	struct mend *m = arg;

	mend_job(m->shim, RECOVER_UNDO);
	shim_end(m->shim);
}

static void mend_due(void *arg)
{
	struct mend *m = arg;
	struct shim *s = m->shim;

	if (!shim_begin_recovery(s))
		return;
	int r = loop_task_start(s->loop, &m->task, try_again, NULL, m);
	if (r < 0) {
		log_warn("no thread to put job %s right: reason=\"%s\"", s->job.id, strerror(-r));
		shim_end(s);
	}
}

static void mend_start(void *part, struct shim *s)
{
	struct mend *m = part;

	m->shim = s;
	m->pause_ms = FIRST_PAUSE_MS;
	loop_add(s->loop, &m->timer, mend_due, m);
}

static void mend_update(void *part)
{
	struct mend *m = part;
	const struct shim_view *v = &m->shim->view;
	const bool wanted = v->use == SHIM_FREE && v->mends;

	if (!wanted && v->use == SHIM_FREE)
		m->pause_ms = FIRST_PAUSE_MS;
	if (!wanted || loop_has_time(&m->timer) || loop_task_works(&m->task))
		return;
	loop_after(&m->timer, m->pause_ms);
	m->pause_ms = 2 * m->pause_ms < PAUSE_MS_MAX ? 2 * m->pause_ms : PAUSE_MS_MAX;
}

const struct shim_part mend_part = {
	.size_bytes = sizeof(struct mend),
	.start = mend_start,
	.update = mend_update,
};
