// SPDX-License-Identifier: MIT
/*
 * What could not be finished is tried again, for as long as it takes: taking over what a predecessor held, an
 * operation whose undo failed, a record that could not be written. The main loop has a timer, each pause is twice as
 * long as the one before, and there is a thread only while it is tried. Nobody has to call for that.
 */
#include "shim/shim.h"

#include <string.h>
#include <sys/timerfd.h>
#include <unistd.h>

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

/* The caller has the lock. */
static bool is_wanted(const struct shim *s)
{
	return !s->busy && !s->left &&
	       (s->held_unknown || job_state_is_passing(s->job.state) || s->job.unsaved ||
		lacks_keeper(s));
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
	if (!s->held_unknown)
		return 0;
	int r = vault_load(&s->vault, op->target, err);
	if (r == -EBADMSG && has_all_it_is(&s->job)) {
		log_error("memory of job %s that is held is not known: reason=\"%s\"", s->job.id,
			  err->text);
		r = 0;
	}
	s->held_unknown = r < 0;
	if (r < 0)
		s->held_why = *err;
	return r;
}

void mend_job(struct shim *s, const char *kind)
{
	auto_(op_fini) struct op op;
	const struct progress_caller nobody = { 0 };
	struct brumate_error err = BRUMATE_ERROR_NONE;

	op_init(&op, kind, &s->job.target, &nobody, NULL);
	op.data.vault = &s->vault;
	int r = take_vault(s, &op, &err);
	if (r == 0)
		r = engine_recover(&op, &err);
	if (r < 0)
		log_error("job %s could not be put right: reason=\"%s\"", s->job.id, err.text);
	if (s->job.unsaved && job_save(&s->job, &err) == 0)
		log_info("the record is on disk again: job=%s", s->job.id);
	if (!s->held_unknown && lacks_keeper(s))
		get_keeper(s);
}

static void *try_again(void *arg)
{
	struct shim *s = arg;

	mend_job(s, RECOVER_UNDO);
	s->mend.task.state = TASK_DONE; /* before the main thread is woken, which looks at it */
	shim_end(s);
	return NULL;
}

void mend_init(struct shim *s)
{
	s->mend.fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	s->mend.pause_ms = FIRST_PAUSE_MS;
}

void mend_update(struct shim *s)
{
	struct shim_mend *m = &s->mend;

	pthread_mutex_lock(&s->lock);
	bool wanted = is_wanted(s), busy = s->busy;
	pthread_mutex_unlock(&s->lock);
	if (!wanted && !busy)
		m->pause_ms = FIRST_PAUSE_MS;
	if (!wanted || m->armed || m->task.state == TASK_WORKING)
		return;
	m->armed = timer_set(m->fd, m->pause_ms, 0) == 0;
	m->pause_ms = 2 * m->pause_ms < PAUSE_MS_MAX ? 2 * m->pause_ms : PAUSE_MS_MAX;
}

void mend_due(struct shim *s)
{
	struct shim_mend *m = &s->mend;
	uint64_t times;

	if (read(m->fd, &times, sizeof(times)) < 0)
		return;
	m->armed = false;
	pthread_mutex_lock(&s->lock);
	bool wanted = is_wanted(s);
	if (wanted && s->job.unsaved)
		s->unsaved = job_to_json(&s->job);
	if (wanted)
		s->busy = "recovery";
	pthread_mutex_unlock(&s->lock);
	if (!wanted)
		return;
	task_join(&m->task);
	int r = task_start(&m->task, try_again, s);
	if (r < 0) {
		log_warn("no thread to put job %s right: reason=\"%s\"", s->job.id, strerror(-r));
		shim_end(s);
	}
}

void mend_fini(struct shim *s)
{
	task_join(&s->mend.task);
	cleanup_close(&s->mend.fd);
}
