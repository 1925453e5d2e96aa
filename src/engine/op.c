// SPDX-License-Identifier: MIT
/* Running a plan, sampling its progress, and the summary of what was measured. */
#include "engine/op.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "engine/copy.h"
#include "engine/fetched.h"
#include "engine/host-memory.h"
#include "engine/park.h"
#include "engine/spilled.h"
#include "store/memory.h"

enum { TICK_MS = 200 };

void op_init(struct op *op, const char *kind, struct job *job, const struct op_caller *caller,
	     uint32_t timeout_ms, bool force)
{
	*op = (struct op){
		.kind = kind,
		.job = job,
		.caller = *caller,
		.timeout_ms = timeout_ms,
		.lock_timeout_ms = OP_LOCK_TIMEOUT_MS,
		.force = force,
		.start_ns = clock_now_ns(),
		.deadline_ns = timeout_ms ? deadline_in_ms(timeout_ms) : DEADLINE_NEVER,
		.notes = json_array(),
		.writer = STORE_WRITER_EMPTY,
		.image = STORE_IMAGE_EMPTY,
		.criu_dir_fd = -1,
		.criu_work_fd = -1,
	};
}

void op_agent_fini(struct op_agent *a)
{
	for (size_t i = 0; a->fds && i < a->n_pieces; i++)
		cleanup_close(&a->fds[i]);
	free(a->fds);
	free(a->pieces);
	a->fds = NULL;
	a->pieces = NULL;
	a->n_pieces = 0;
}

void op_drop_agents(struct op *op)
{
	park_detach(op);
	for (size_t i = 0; i < op->n_agents; i++)
		op_agent_fini(&op->agents[i]);
	free(op->agents);
	op->agents = NULL;
	op->n_agents = 0;
}

void op_fini(struct op *op)
{
	step_undo_copy(op);
	op_drop_agents(op);
	chunks_writer_free(op->memory);
	op->memory = NULL;
	host_memory_close(op->host);
	op->host = NULL;
	host_copy_fini(&op->saved);
	spilled_free(op->spilled);
	op->spilled = NULL;
	if (op->broker_is_open)
		broker_client_close(&op->broker);
	op->broker_is_open = false;
	proc_tree_fini(&op->tree);
	free(op->gpus);
	free(op->pairs);
	free(op->store_dir);
	cleanup_close(&op->criu_dir_fd);
	store_abort(&op->writer);
	fetched_close(op);
	store_image_fini(&op->image);
	store_key_fini(&op->key);
	manifest_fini(&op->manifest);
	json_decref(op->notes);
	op->notes = NULL;
}

void op_note(struct op *op, const char *fmt, ...)
{
	char text[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	json_array_append_new(op->notes, wire_string(text));
}

void op_measure(struct op *op, uint64_t (*measure)(struct op *op), uint64_t total_bytes)
{
	op->total_bytes = total_bytes;
	op->measure = measure;
}

void op_phase_at(struct op *op, const char *name, uint64_t start_ns, double seconds)
{
	if (op->n_phases == OP_PHASES_MAX)
		return;
	struct manifest_phase *phase = &op->phases[op->n_phases];
	double start = (double)(start_ns - op->start_ns) / (double)NS_PER_S;
	op->phase_starts[op->n_phases++] = start_ns > op->start_ns ? start : 0;
	snprintf(phase->name, sizeof(phase->name), "%s", name);
	phase->seconds = seconds;
}

void op_phase(struct op *op, const char *name, double seconds)
{
	op_phase_at(op, name, clock_now_ns() - (uint64_t)(seconds * (double)NS_PER_S), seconds);
}

int op_check(struct op *op, struct brumate_error *err)
{
	if (!op->cancelled && op->caller.is_cancelled && op->caller.is_cancelled(op->caller.arg))
		op->cancelled = true;
	if (op->cancelled)
		return brumate_fail(err, ECANCELED, "cancelled");
	if (deadline_left_ms(op->deadline_ns) == 0)
		return brumate_fail(err, ETIMEDOUT, "not done within the %.1f s given",
				    op->timeout_ms / 1000.0);
	return 0;
}

/* ---- the ticker ---- */

struct ticker {
	struct op *op;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t stop;
	bool stopped, started;
};

static void report(struct op *op)
{
	uint64_t (*measure)(struct op * op) = op->measure;
	uint64_t bytes = measure ? measure(op) : 0;
	uint64_t total = op->total_bytes;
	const char *phase = op->phase, *waiting_for = op->waiting_for;
	auto_json json_t *progress =
		json_pack("{s:i,s:i,s:s,s:s,s:I,s:I,s:f}", "step", (int)op->step + 1, "steps",
			  (int)op->n_steps, "phase", phase ? phase : "", "waiting_for",
			  waiting_for ? waiting_for : "", "bytes",
			  (json_int_t)(total && bytes > total ? total : bytes), "total_bytes",
			  (json_int_t)total, "seconds", clock_since_s(op->phase_start_ns));

	if (progress && op->caller.progress)
		op->caller.progress(op->caller.arg, progress);
}

static void *tick(void *arg)
{
	struct ticker *t = arg;

	pthread_mutex_lock(&t->lock);
	while (!t->stopped) {
		struct timespec until = deadline_timespec(clock_wall_ns() + TICK_MS * NS_PER_MS);

		if (pthread_cond_timedwait(&t->stop, &t->lock, &until) != ETIMEDOUT)
			continue;
		report(t->op);
		op_check(t->op, NULL);
	}
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

static void ticker_start(struct ticker *t, struct op *op)
{
	*t = (struct ticker){ .op = op };
	pthread_mutex_init(&t->lock, NULL);
	pthread_cond_init(&t->stop, NULL);
	t->started = pthread_create(&t->thread, NULL, tick, t) == 0; /* without it: no progress */
}

static void ticker_stop(struct ticker *t)
{
	pthread_mutex_lock(&t->lock);
	t->stopped = true;
	pthread_cond_signal(&t->stop);
	pthread_mutex_unlock(&t->lock);
	if (t->started)
		pthread_join(t->thread, NULL);
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->stop);
}

/* ---- the plan ---- */

static int pass_fault_point(const struct op *op, const struct step *step, const char *where,
			    struct brumate_error *err)
{
	char name[96];

	snprintf(name, sizeof(name), "%s.%s.%s", op->kind, step->name, where);
	int r = fault_point(name);
	return r < 0 ? brumate_fail(err, -r, "injected at %s: %m", name) : 0;
}

static int run_step(const struct step *step, struct op *op, struct brumate_error *err)
{
	int r = op_check(op, err);

	if (r == 0)
		r = pass_fault_point(op, step, "begin", err);
	if (r < 0)
		return r;
	int outcome = step->run(op, err);
	if (outcome < 0)
		return outcome;
	r = pass_fault_point(op, step, "end", err);
	return r < 0 ? r : outcome;
}

static void undo(const struct step *steps, size_t failed, struct op *op)
{
	for (size_t i = failed + 1; i-- > 0;) {
		if (!steps[i].undo)
			continue;
		op->step = i;
		op->phase = steps[i].name;
		op->waiting_for = "undoing";
		op->measure = NULL;
		steps[i].undo(op);
	}
}

int plan_run(const struct step *steps, size_t n, struct op *op, struct brumate_error *err)
{
	struct ticker ticker;
	int r = 0;

	op->n_steps = n;
	ticker_start(&ticker, op);
	for (size_t i = 0; i < n && r >= 0; i++) {
		uint64_t start_ns = clock_now_ns();

		op->step = i;
		op->phase_start_ns = start_ns;
		op->waiting_for = steps[i].waiting_for;
		op_measure(op, NULL, 0);
		op->phase = steps[i].name;
		r = run_step(&steps[i], op, err);
		if (r < 0) {
			brumate_wrap(err, r, "%s", steps[i].name);
			log_info("%s of job %s failed, undoing: step=%s reason=\"%s\"", op->kind,
				 op->job->id, steps[i].name, err ? err->text : "");
			undo(steps, i, op);
		} else if (r == 0) {
			op_phase(op, steps[i].name, clock_since_s(start_ns));
		}
	}
	ticker_stop(&ticker);
	return r < 0 ? r : 0;
}

/* ---- the summary ---- */

json_t *op_summary(const struct op *op)
{
	double seconds = clock_since_s(op->start_ns), downtime = 0;
	const char *path = op->job->checkpoint_path;
	json_t *phases = json_array();

	if (op->gated_ns && op->released_ns)
		downtime = (double)(op->released_ns - op->gated_ns) / (double)NS_PER_S;
	for (size_t i = 0; i < op->n_phases; i++)
		json_array_append_new(phases, json_pack("{s:s,s:f,s:f}", "name", op->phases[i].name,
							"seconds", op->phases[i].seconds, "start",
							op->phase_starts[i]));
	uint64_t by_data = op->data_bytes < op->gpu_bytes ? op->data_bytes : op->gpu_bytes;
	uint64_t bytes = op->image_bytes ? op->image_bytes : op->gpu_bytes;
	return json_pack(
		"{s:s,s:s,s:s?,s:o,s:f,s:f,s:o,s:I,s:I,s:f,s:I,s:I,s:I,s:I,s:f,s:I,s:O}",
		"operation", op->kind, "job", op->job->id, "checkpoint", op->job->checkpoint,
		"path", path ? wire_string(path) : json_null(), "seconds", seconds, "downtime_s",
		downtime, "phases", phases, "gpu_bytes", (json_int_t)op->gpu_bytes, "image_bytes",
		(json_int_t)op->image_bytes, "gbps",
		seconds > 0 ? (double)bytes / 1e9 / seconds : 0.0, "data_bytes",
		(json_int_t)op->data_bytes, "zero_bytes", (json_int_t)op->spared.zero_bytes,
		"unchanged_bytes", (json_int_t)op->spared.same_bytes, "disk_bytes",
		(json_int_t)op->disk_bytes, "data_gbps",
		op->data_seconds > 0 ? (double)op->data_bytes / 1e9 / op->data_seconds : 0.0,
		"driver_bytes", (json_int_t)(op->gpu_bytes - by_data), "notes", op->notes);
}

void op_finish(struct op *op)
{
	auto_json json_t *summary = op_summary(op);
	auto_free char *text = summary ? json_dumps(summary, JSON_INDENT(1)) : NULL;
	auto_free char *path = path_format("%s/last.json", op->job->dir);

	if (text && path && file_swap(AT_FDCWD, path, text, strlen(text), 0600) < 0)
		log_warn("the summary could not be stored: path=%s", path);
	log_info("%s of job %s done: seconds=%.3f gpu_bytes=%llu image_bytes=%llu", op->kind,
		 op->job->id, clock_since_s(op->start_ns), (unsigned long long)op->gpu_bytes,
		 (unsigned long long)op->image_bytes);
}
