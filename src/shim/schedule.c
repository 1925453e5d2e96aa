// SPDX-License-Identifier: MIT
/*
 * Checkpoints by schedule (`checkpoint --every`). The loop has a timer, and there is a thread only while a
 * checkpoint is made. A checkpoint that is due while an operation is under way, or while the job does not run, is
 * left out. One that fails is noted in the record; the next period tries again. Which ones stay is decided by the
 * rule of `brumate prune`.
 */
#include "shim/shim.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/log.h"
#include "base/paths.h"
#include "job/events.h"

struct schedule {
	struct shim *shim;
	struct loop_source timer;
	struct loop_task task;
	uint64_t every_ms, next_ms; /* of the record, as the timer is set */
};

/* The clock of next_ms, as of the loop. */
static uint64_t boot_clock_ms(void)
{
	return clock_boot_ns() / NS_PER_MS;
}

static void schedule_update(void *part)
{
	struct schedule *d = part;
	const struct shim_view *v = &d->shim->view;
	const struct job_schedule now = { .every_ms = v->every_ms, .next_ms = v->next_ms };

	if (v->every_ms == d->every_ms && v->next_ms == d->next_ms)
		return;
	d->every_ms = v->every_ms;
	d->next_ms = v->next_ms;
	if (d->every_ms)
		loop_after(&d->timer, schedule_left_ms(&now, boot_clock_ms()));
	else
		loop_never(&d->timer);
}

struct pruning {
	const char *job, *dir;
};

/* The record is read again for each, as an operation may have changed it meanwhile. */
static const char *needed_for(void *arg, const char *id)
{
	const struct pruning *p = arg;
	auto_(job_fini) struct job job = JOB_EMPTY;
	auto_free char *path = path_format("%s/%s", p->dir, id);

	if (!path || job_load(&job, p->job, NULL) < 0)
		return "whether the job's record names it cannot be told";
	return job_names_checkpoint(&job, path) ? "the job's record names it" : NULL;
}

static void tell_pruned(void *arg, enum store_pruned what, const char *id, const char *why)
{
	const struct pruning *p = arg;

	if (what == STORE_PRUNE_REMOVED)
		log_info("removed an old checkpoint: job=%s checkpoint=%s", p->job, id);
	else
		log_warn("an old checkpoint stays: job=%s checkpoint=%s reason=\"%s\"", p->job, id,
			 why);
}

static void prune_checkpoints(const char *job, const struct job_schedule *schedule)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct pruning pruning = { job, schedule->request.dir };
	struct store_prune p = {
		.job = job,
		.rule = { schedule->keep_last, schedule->keep_within_ms },
		.needed = needed_for,
		.tell = tell_pruned,
		.arg = &pruning,
	};

	if (!p.rule.keep_last && !p.rule.keep_within_ms)
		return;
	if (store_prune(schedule->request.dir, &p, &err) < 0)
		log_warn("old checkpoints stay: job=%s reason=\"%s\"", job, err.text);
}

/* Begins one checkpoint. What was not given is as the configuration says now, as for a checkpoint
 * by command. */
static int begin(struct shim_own *ret, struct shim *s, struct brumate_error *err)
{
	struct request asked = s->job.schedule.request, *request = &ret->request;
	enum chunks_compress how;

	asked.leave_running = asked.unnamed = true;
	store_new_id(asked.id, asked.dir, s->job.name);
	int r = shim_own_init(ret, s, "checkpoint", &asked, REQUEST_SCHEDULE, err);
	if (r < 0)
		return r;
	if (chunks_parse_compress(&how, request->compress) < 0)
		return brumate_fail(err, EINVAL, "compress: %s", request->compress);
	return *request->key_file ? store_key_load(&request->key, request->key_file, err) : 0;
}

static void note_failure(struct shim *s, const struct brumate_error *err)
{
	struct job *job = &s->job;

	log_warn("a scheduled checkpoint failed: job=%s reason=\"%s\"", job->id, err->text);
	hooks_failed(s, "checkpoint by schedule", err->text);
	snprintf(job->message, sizeof(job->message), "scheduled checkpoint: %s", err->text);
	snprintf(job->schedule.failure, sizeof(job->schedule.failure), "%s", err->text);
	job_save(job, NULL);
}

/* One that is made says that what was in the way of the last is no more. */
static void note_success(struct job *job)
{
	if (!job->schedule.failure[0])
		return;
	job->schedule.failure[0] = '\0';
	job_save(job, NULL);
}

/* Makes a checkpoint, as the operation that schedule_due() has begun. */
static void make_checkpoint(void *arg)
{
	struct shim *s = ((struct schedule *)arg)->shim;
	struct job_schedule schedule = s->job.schedule;
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_(shim_own_fini) struct shim_own own;
	char job[JOB_ID_BYTES];

	memcpy(job, s->job.id, sizeof(job));
	int r = begin(&own, s, &err);
	if (r == 0)
		r = engine_checkpoint(&own.op, &err);
	s->ending = true; /* by the record it runs: who reads that and asks for more waits */
	op_finish(&own.op, r);
	if (r < 0)
		note_failure(s, &err);
	else
		note_success(&s->job);
	store_abort(&own.op.checkpoint.writer); /* before another checkpoint may take that id */
	shim_end(s);
	if (r == 0)
		prune_checkpoints(job, &schedule);
}

static void schedule_due(void *arg)
{
	struct schedule *d = arg;
	struct shim *s = d->shim;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	loop_after(&d->timer, d->every_ms); /* if this one is left out */
	if (loop_task_works(&d->task)) {
		log_info("a scheduled checkpoint is skipped: the last one is still at work");
		return;
	}
	if (shim_begin_now(s, "checkpoint", 1u << JOB_RUNNING, &err) < 0) {
		log_info("a scheduled checkpoint is skipped: reason=\"%s\"", err.text);
		return;
	}
	if (!s->job.schedule.every_ms) { /* the schedule was ended since the timer ran out */
		shim_end(s);
		return;
	}
	s->job.schedule.next_ms = boot_clock_ms() + s->job.schedule.every_ms;
	int r = loop_task_start(s->loop, &d->task, make_checkpoint, NULL, d);
	if (r < 0) {
		log_warn("a scheduled checkpoint is skipped: no thread: reason=\"%s\"",
			 strerror(-r));
		shim_end(s);
	}
}

static void schedule_start(void *part, struct shim *s)
{
	struct schedule *d = part;

	d->shim = s;
	loop_add(s->loop, &d->timer, schedule_due, d);
}

const struct shim_part schedule_part = {
	.size_bytes = sizeof(struct schedule),
	.start = schedule_start,
	.update = schedule_update,
};

/* ---- the method ---- */

/* Checks what the table of options cannot. A key file is tried now, and not when the first checkpoint is due. */
static int check_request(const struct request *request, struct brumate_error *err)
{
	auto_(store_key_fini) struct store_key key = { .id = "" };

	if (strlen(request->dir) >= JOB_SCHEDULE_DIR_BYTES)
		return wire_fail_parameter(err, "dir", "is too long");
	return *request->key_file ? store_key_load(&key, request->key_file, err) : 0;
}

static int get_schedule(struct job_schedule *ret, json_t *parameters, struct brumate_error *err)
{
	int64_t every_ms = -1, last = 0, within_ms = 0;
	int r;

	if ((r = wire_get_int(parameters, "every_ms", 0, JOB_SCHEDULE_MS_MAX, &every_ms, err)) <
		    0 ||
	    (r = wire_get_int(parameters, "keep_last", 1, UINT_MAX, &last, err)) < 0 ||
	    (r = wire_get_int(parameters, "keep_within_ms", 1, INT64_MAX, &within_ms, err)) < 0 ||
	    (r = request_decode(&ret->request, REQUEST_SCHEDULE, parameters, err)) < 0 ||
	    (r = check_request(&ret->request, err)) < 0)
		return r;
	if (every_ms < 0 || (every_ms && every_ms < JOB_SCHEDULE_MS_MIN))
		return wire_fail_parameter(err, "every_ms",
					   "expected a second or more, or 0 for no more");
	ret->every_ms = (uint64_t)every_ms;
	ret->keep_last = (unsigned)last;
	ret->keep_within_ms = (uint64_t)within_ms;
	ret->next_ms = boot_clock_ms() + ret->every_ms;
	return 0;
}

static void tell_event(const struct job *job)
{
	const struct job_schedule *schedule = &job->schedule;

	event_add(&job->target, "schedule",
		  json_pack("{s:I,s:i,s:I}", "every_ms", (json_int_t)schedule->every_ms,
			    "keep_last", (int)schedule->keep_last, "keep_within_ms",
			    (json_int_t)schedule->keep_within_ms));
}

/* What each of its checkpoints would refuse is refused at once. */
static int check_connections(struct shim *s, const struct request *request,
			     struct brumate_error *err)
{
	auto_(op_fini) struct op op;

	op_init(&op, "schedule", &s->job.target, NULL, request);
	return request->tcp_close || request->force ? 0 : preflight_connections(&op, err);
}

int schedule_method(void *arg, struct wire_call_context *call, json_t *parameters,
		    struct brumate_error *err)
{
	struct shim *s = arg;
	struct job_schedule schedule = { 0 };
	int r = get_schedule(&schedule, parameters, err);

	if (r < 0)
		return r;
	r = shim_begin_after(s, "change of the schedule",
			     schedule.every_ms ? 1u << JOB_RUNNING | 1u << JOB_SUSPENDED : 0, call,
			     err);
	if (r < 0)
		return r;
	if (schedule.every_ms && (r = check_connections(s, &schedule.request, err)) < 0) {
		shim_end(s);
		return r;
	}
	struct job_schedule before = s->job.schedule;
	s->job.schedule = schedule.every_ms ? schedule : (struct job_schedule){ 0 };
	r = job_save(&s->job, err);
	if (r < 0)
		s->job.schedule = before;
	else
		tell_event(&s->job);
	shim_end(s); /* ends a turn of the loop, which sets the timer */
	return r < 0 ? r : shim_reply_job(s, call, err);
}
