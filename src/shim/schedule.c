// SPDX-License-Identifier: MIT
/*
 * Checkpoints every so often (`checkpoint --every`): a timer in the main loop, and a thread only while
 * one is made. One that is due while something else is under way, or while the job does not run, is
 * left out; one that fails is noted and tried again in the next period. What is kept is decided by the
 * same rule as `brumate prune`.
 */
#include "shim/shim.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "engine/secret.h"

static uint64_t now_ms(void)
{
	return clock_wall_ns() / NS_PER_MS;
}

static struct timespec span(uint64_t ms)
{
	return (struct timespec){ (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };
}

/* A first time in the past (no shim lived then) is now; one beyond a period (the clock was set back) is
 * a period away. */
static void set_timer(struct shim *s)
{
	const struct job_schedule *schedule = &s->job.schedule;
	struct itimerspec when = { 0 };
	uint64_t now = now_ms(), left_ms;

	s->timer.changed = false;
	if (schedule->every_ms) {
		left_ms = schedule->next_ms > now ? schedule->next_ms - now : 1;
		if (left_ms > schedule->every_ms)
			left_ms = schedule->every_ms;
		when = (struct itimerspec){ span(schedule->every_ms), span(left_ms) };
	}
	/* Boot time: a machine that sleeps does not put checkpoints off. */
	if (timerfd_settime(s->timer.fd, 0, &when, NULL) < 0)
		log_error("no checkpoints by schedule: job=%s reason=\"%m\"", s->job.id);
}

void schedule_init(struct shim *s)
{
	s->timer.fd = timerfd_create(CLOCK_BOOTTIME, TFD_CLOEXEC | TFD_NONBLOCK);
	s->timer.changed = true;
	schedule_update(s);
}

void schedule_update(struct shim *s)
{
	pthread_mutex_lock(&s->lock);
	if (!s->busy && s->timer.changed)
		set_timer(s);
	pthread_mutex_unlock(&s->lock);
}

static bool is_cancelled(void *arg)
{
	struct shim *s = arg;

	return s->timer.stop;
}

static void tell_pruned(void *arg, enum store_pruned what, const char *id, const char *why)
{
	if (what == STORE_PRUNE_REMOVED)
		log_info("removed an old checkpoint: job=%s checkpoint=%s", (const char *)arg, id);
	else
		log_warn("an old checkpoint stays: job=%s checkpoint=%s reason=\"%s\"",
			 (const char *)arg, id, why);
}

static void prune(const char *job, const struct job_schedule *schedule)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct store_prune p = {
		.job = job,
		.rule = { schedule->keep_last, schedule->keep_within_ms },
		.tell = tell_pruned,
		.arg = (void *)job,
	};

	if (!p.rule.keep_last && !p.rule.keep_within_ms)
		return;
	if (store_prune(schedule->dir, &p, &err) < 0)
		log_warn("old checkpoints stay: job=%s reason=\"%s\"", job, err.text);
}

/* What was not given is as the configuration says now, as for a checkpoint by command. */
static int configure(struct op *op, const struct job_schedule *schedule,
		     const struct brumate_conf *conf, struct brumate_error *err)
{
	op->keep_copy = schedule->keep_copy || conf->keep_copy;
	op->live = schedule->live;
	op->compress = (enum chunks_compress)conf->compress;
	if (conf->lock_timeout_ms && conf->lock_timeout_ms <= UINT32_MAX)
		op->lock_timeout_ms = (uint32_t)conf->lock_timeout_ms;
	if (*schedule->compress && chunks_parse_compress(&op->compress, schedule->compress) < 0)
		return brumate_fail(err, EINVAL, "compress: %s", schedule->compress);
	return *schedule->key_file ? secret_give_file(op, schedule->key_file, err) : 0;
}

static uint32_t timeout_of(const struct job_schedule *schedule, const struct brumate_conf *conf)
{
	if (schedule->timeout_ms)
		return schedule->timeout_ms;
	return conf->timeout_ms < INT_MAX ? (uint32_t)conf->timeout_ms : INT_MAX;
}

static int save(struct shim *s, struct op *op, struct brumate_error *err)
{
	const struct job_schedule *schedule = &s->job.schedule;
	char id[MANIFEST_ID_BYTES];

	store_new_id(id, schedule->dir, s->job.name);
	op->checkpoint_id = id;
	op->leave_running = true;
	op->store_dir = strdup(schedule->dir);
	if (!op->store_dir)
		return brumate_fail(err, ENOMEM, "%m");
	int r = engine_checkpoint(op, err);
	op->checkpoint_id = NULL;
	if (r == 0)
		op_finish(op);
	return r;
}

static void note_failure(struct job *job, const struct brumate_error *err)
{
	log_warn("a checkpoint by schedule failed: job=%s reason=\"%s\"", job->id, err->text);
	snprintf(job->message, sizeof(job->message), "checkpoint by schedule: %s", err->text);
	job_save(job, NULL);
}

/* With the job's record in our hands, see schedule_due(). */
static void *make_checkpoint(void *arg)
{
	struct shim *s = arg;
	struct job_schedule schedule = s->job.schedule;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	const struct progress_caller caller = { .arg = s, .is_cancelled = is_cancelled };
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	auto_(op_fini) struct op op;
	char job[JOB_ID_BYTES];

	memcpy(job, s->job.id, sizeof(job));
	int r = conf_load(&conf, &err);
	op_init(&op, "checkpoint", &s->job, &caller, timeout_of(&schedule, &conf), schedule.force);
	op.vault = &s->vault;
	if (r == 0)
		r = configure(&op, &schedule, &conf, &err);
	if (r == 0)
		r = save(s, &op, &err);
	if (r < 0)
		note_failure(&s->job, &err);
	store_abort(&op.writer); /* before anybody else may want that place */
	shim_end(s);
	if (r == 0)
		prune(job, &schedule);
	s->timer.working = false;
	return NULL;
}

static int start_thread(struct shim *s)
{
	sigset_t all, old;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(&s->timer.thread, NULL, make_checkpoint, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -r;
}

static void join(struct shim *s)
{
	if (s->timer.started)
		pthread_join(s->timer.thread, NULL);
	s->timer.started = false;
}

void schedule_due(struct shim *s)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	uint64_t times;

	if (read(s->timer.fd, &times, sizeof(times)) < 0)
		return; /* it was set anew meanwhile */
	if (s->timer.working) {
		log_info("a checkpoint by schedule is left out: the last one is still at work");
		return;
	}
	join(s);
	if (shim_begin(s, "checkpoint", 1u << JOB_RUNNING, &err) < 0) {
		log_info("a checkpoint by schedule is left out: reason=\"%s\"", err.text);
		return;
	}
	if (!s->job.schedule.every_ms) { /* ended since the timer ran out */
		shim_end(s);
		return;
	}
	s->job.schedule.next_ms = now_ms() + s->job.schedule.every_ms;
	s->timer.working = true;
	int r = start_thread(s);
	s->timer.started = r == 0;
	if (r < 0) {
		log_warn("a checkpoint by schedule is left out: no thread: reason=\"%s\"",
			 strerror(-r));
		s->timer.working = false;
		shim_end(s);
	}
}

void schedule_fini(struct shim *s)
{
	s->timer.stop = true;
	join(s);
	cleanup_close(&s->timer.fd);
}

/* ---- the method ---- */

static int copy_text(char *ret, size_t room, json_t *parameters, const char *key,
		     struct brumate_error *err)
{
	const char *text;
	int r = wire_get_string(parameters, key, &text, err);

	if (r < 0 || !text)
		return r;
	if (strlen(text) >= room)
		return wire_fail_parameter(err, key, "is too long");
	strcpy(ret, text);
	return 0;
}

/* A key file that is of no use is told now, not when the first checkpoint is due. */
static int get_manner(struct job_schedule *ret, json_t *parameters, struct brumate_error *err)
{
	auto_(store_key_fini) struct store_key key = { .id = "" };
	int r;

	if ((r = wire_get_bool(parameters, "force", &ret->force, err)) < 0 ||
	    (r = wire_get_bool(parameters, "keep_copy", &ret->keep_copy, err)) < 0 ||
	    (r = wire_get_bool(parameters, "live", &ret->live, err)) < 0 ||
	    (r = copy_text(ret->compress, sizeof(ret->compress), parameters, "compress", err)) <
		    0 ||
	    (r = copy_text(ret->key_file, sizeof(ret->key_file), parameters, "key_file", err)) < 0)
		return r;
	return *ret->key_file ? store_key_load(&key, ret->key_file, err) : 0;
}

static int get_schedule(struct job_schedule *ret, json_t *parameters, struct brumate_error *err)
{
	int64_t every_ms = -1, last = 0, within_ms = 0, timeout_ms = 0;
	const char *dir;
	int r;

	if ((r = wire_get_int(parameters, "every_ms", 0, JOB_SCHEDULE_MS_MAX, &every_ms, err)) <
		    0 ||
	    (r = wire_get_int(parameters, "keep_last", 1, UINT_MAX, &last, err)) < 0 ||
	    (r = wire_get_int(parameters, "keep_within_ms", 1, INT64_MAX, &within_ms, err)) < 0 ||
	    (r = wire_get_int(parameters, "timeout_ms", 0, INT32_MAX, &timeout_ms, err)) < 0 ||
	    (r = get_manner(ret, parameters, err)) < 0 ||
	    (r = wire_need_string(parameters, "dir", &dir, err)) < 0)
		return r;
	if (every_ms < 0 || (every_ms && every_ms < JOB_SCHEDULE_MS_MIN))
		return wire_fail_parameter(err, "every_ms",
					   "want a second or more, or 0 for no more");
	if (strlen(dir) >= sizeof(ret->dir))
		return wire_fail_parameter(err, "dir", "is too long");
	strcpy(ret->dir, dir);
	ret->every_ms = (uint64_t)every_ms;
	ret->keep_last = (unsigned)last;
	ret->keep_within_ms = (uint64_t)within_ms;
	ret->timeout_ms = (uint32_t)timeout_ms;
	ret->next_ms = now_ms() + ret->every_ms;
	return 0;
}

int schedule_method(void *arg, struct wire_call_context *call, json_t *parameters,
		    struct brumate_error *err)
{
	struct shim *s = arg;
	struct job_schedule schedule = { 0 };
	int r = get_schedule(&schedule, parameters, err);

	if (r < 0)
		return r;
	r = shim_begin(s, "change of the schedule",
		       schedule.every_ms ? 1u << JOB_RUNNING | 1u << JOB_SUSPENDED : 0, err);
	if (r < 0)
		return r;
	struct job_schedule before = s->job.schedule;
	s->job.schedule = schedule.every_ms ? schedule : (struct job_schedule){ 0 };
	r = job_save(&s->job, err);
	if (r < 0)
		s->job.schedule = before;
	else
		s->timer.changed = true;
	shim_end(s); /* wakes the main loop, which sets the timer */
	return r < 0 ? r : shim_reply_job(s, call);
}
