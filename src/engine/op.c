// SPDX-License-Identifier: MIT
/* Making and ending an operation, running its plan, and the summary of what was measured. */
#include "engine/op.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/machine.h"
#include "base/paths.h"
#include "datapath/park.h"
#include "datapath/move.h"
#include "engine/fetched.h"
#include "job/events.h"
#include "job/counts.h"
#include "job/job.h"
#include "job/standstill.h"
#include "store/authentic.h"

enum { SWEPT_SPARE_MS = 3000, SWEPT_PAUSE_MS = 20 };

void op_init(struct op *op, const char *kind, struct target *target,
	     const struct progress_caller *caller, const struct request *request)
{
	static const struct request nothing;

	request = request ? request : &nothing;
	*op = (struct op){
		.kind = kind,
		.target = target,
		.request = request,
		.gpus = { .target = target, .vendor = gpu_kind_vendor(&target->gpu_kind) },
		.turn = TURN_NONE,
		.data = { .target = target,
			  .agent_dir = target->owned_by->agent_dir(target),
			  .lock_timeout_ms = OP_LOCK_TIMEOUT_MS,
			  .force = request->force,
			  .keep = { .copy = request->keep_copy },
			  .progress = &op->progress },
		.images.dir_fd = -1,
		.checkpoint = { .writer = STORE_WRITER_EMPTY, .work_fd = -1 },
		.restore.image = STORE_IMAGE_EMPTY,
		.together_fd = -1,
	};
	progress_init(&op->progress, caller, request->timeout_ms);
}

/* Readers are stopped before what they read is freed. */
void op_fini(struct op *op)
{
	digest_table_free(take_ptr(&op->counted));
	move_stop(&op->data);
	chunks_writer_free(op->checkpoint.memory);
	op->checkpoint.memory = NULL;
	cpu_memory_image_close(op->images.cpu_memory);
	op->images.cpu_memory = NULL;
	device_image_writer_fini(&op->checkpoint.device);
	datapath_fini(&op->data);
	turn_end(&op->turn);
	gpu_set_fini(&op->gpus);
	proc_tree_fini(&op->tree);
	cleanup_close(&op->images.dir_fd);
	cleanup_close(&op->together_fd);
	cleanup_free(&op->together_closes);
	store_abort(&op->checkpoint.writer);
	fetched_close(take_ptr(&op->restore.fetched));
	device_image_reader_fini(&op->restore.device);
	store_image_fini(&op->restore.image);
	attributes_fini(&op->checkpoint.attributes);
	free(op->checkpoint.timer_queues);
	attributes_fini(&op->restore.attributes);
	socket_options_fini(&op->checkpoint.sockets);
	connections_fini(&op->checkpoint.connections);
	connections_fini(&op->restore.connections);
	socket_options_fini(&op->restore.sockets);
	file_locks_fini(&op->checkpoint.locks);
	file_locks_fini(&op->restore.locks);
	cleanup_free(&op->images.user.groups);
	authority_fini(&op->images.authority);
	signing_key_free(op->images.signing);
	op->images.signing = NULL;
	manifest_fini(&op->checkpoint.manifest);
	progress_fini(&op->progress);
}

/* ---- whose processes they are ---- */

void op_note_vendor(struct op *op)
{
	struct gpu_kind *kind = &op->target->gpu_kind;

	snprintf(kind->vendor, sizeof(kind->vendor), "%s", op->gpus.vendor->id);
}

int op_find_gpus(struct op *op, struct brumate_error *err)
{
	proc_tree_fini(&op->tree);
	op->data.uses_agents = op->target->data_path == JOB_DATA_BROKER;
	const struct proc_members members = target_members(op->target);
	int r = proc_members_read(&op->tree, &members, err);

	if (r == 0)
		r = gpu_set_find(&op->gpus, &op->tree, err);
	if (r == 0)
		op_note_vendor(op);
	return r;
}

/* Whether an agent of each GPU process listens. */
static bool all_listen(const struct op *op)
{
	for (size_t i = 0; i < op->gpus.n; i++) {
		const struct proc_id id = op->gpus.items[i].id;
		struct proc_info info;

		if (proc_read(&info, id.pid, NULL) == 0 && proc_is_same(info.id, id) &&
		    !agent_listens(op->data.agent_dir, info.inner_pid))
			return false;
	}
	return true;
}

/* If /tmp was cleared, the directory of the agents' sockets is gone. Agents listen again once the directory exists and
 * their processes run. The wait is limited, as a process may have no agent. */
static int mend_agent_dir(struct op *op, struct brumate_error *err)
{
	const uint64_t until_ns = deadline_in_ms(AGENT_LOOKS_S * 1000 + SWEPT_SPARE_MS);
	const struct target *target = op->target;

	if (!op->data.uses_agents || !target->owned_by->was_started(target) ||
	    *target->started_as || !op->gpus.n || access(op->data.agent_dir, F_OK) == 0 ||
	    errno != ENOENT)
		return 0;
	log_warn("the directory of the agents is gone, and made anew: job=%s path=%s", target->id,
		 op->data.agent_dir);
	int r = job_make_agent_dir(target, err);
	if (r < 0)
		return r;
	standstill_wake_first(target);
	while (!all_listen(op) && clock_now_ns() < until_ns)
		nanosleep(&(struct timespec){ .tv_nsec = SWEPT_PAUSE_MS * (long)NS_PER_MS }, NULL);
	progress_note(&op->progress, "%s was gone, and is made anew: see that nobody clears it",
		      op->data.agent_dir);
	return op_find_gpus(op, err);
}

int op_find_agents(struct op *op, bool tell, struct brumate_error *err)
{
	int r = mend_agent_dir(op, err);

	if (r < 0)
		return r;
	if (gpu_set_is_asleep(&op->gpus)) { /* it would not answer */
		datapath_drop_agents(&op->data);
		return 0;
	}
	auto_free struct proc_id *ids = gpu_set_ids(&op->gpus);
	if (!ids)
		return brumate_fail(err, ENOMEM, "%m");
	return park_find(&op->data, &op->tree, ids, op->gpus.n, tell ? &op->progress : NULL, err);
}

void op_clear_vault(struct op *op)
{
	if (op->data.vault)
		vault_clear(op->data.vault, op->target);
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

/* A keeper that was killed is replaced at once, not after the last step: the shim alone holds the memory meanwhile. */
static void replace_keeper(struct op *op)
{
	struct vault *v = op->data.vault;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (v && v->keeper.fd >= 0 && vault_is_alone(v) && vault_guard(v, op->target, &err) < 0)
		log_error("no other keeper: job=%s reason=\"%s\"", op->target->id, err.text);
}

static int run_step(const struct step *step, struct op *op, struct brumate_error *err)
{
	int r = pass_fault_point(op, step, "begin", err);

	if (r < 0)
		return r;
	int outcome = step->run(op, err);
	if (outcome < 0)
		return outcome;
	r = pass_fault_point(op, step, "end", err);
	return r < 0 ? r : outcome;
}

static void undo_steps(const struct step *steps, size_t failed, struct op *op)
{
	for (size_t i = failed + 1; i-- > 0;) {
		if (!steps[i].undo)
			continue;
		progress_step(&op->progress, i, steps[i].name, "undoing");
		steps[i].undo(op);
	}
}

int plan_run(const struct step *steps, size_t n, struct op *op, struct brumate_error *err)
{
	int r = 0;

	progress_start(&op->progress, n);
	for (size_t i = 0; i < n && r >= 0; i++) {
		uint64_t start_ns = clock_now_ns();

		replace_keeper(op);
		/* While it is known what the step before waited for. */
		r = progress_check(&op->progress, err);
		progress_step(&op->progress, i, steps[i].name, steps[i].waiting_for);
		if (r == 0)
			r = run_step(&steps[i], op, err);
		if (r < 0) {
			brumate_wrap(err, r, "%s", steps[i].name);
			log_info("%s of job %s failed, undoing: step=%s reason=\"%s\"", op->kind,
				 op->target->id, steps[i].name, err ? err->text : "");
			undo_steps(steps, i, op);
		} else if (r == 0) {
			progress_phase(&op->progress, steps[i].name, start_ns);
		}
	}
	progress_stop(&op->progress);
	return r < 0 ? r : 0;
}

/* ---- what the caller is told ---- */

json_t *op_progress_to_json(const struct progress_sample *s)
{
	return json_pack("{s:i,s:i,s:s,s:s,s:I,s:I,s:f}", "step", (int)s->step, "steps",
			 (int)s->n_steps, "phase", s->phase, "waiting_for", s->waiting_for, "bytes",
			 (json_int_t)s->bytes, "total_bytes", (json_int_t)s->total_bytes, "seconds",
			 s->seconds);
}

static json_t *phases_to_json(const struct progress *p)
{
	json_t *phases = json_array();

	for (size_t i = 0; i < p->n_phases; i++)
		json_array_append_new(phases, json_pack("{s:s,s:f,s:f}", "name", p->phases[i].name,
							"seconds", p->phases[i].seconds, "start",
							p->phases[i].start));
	return phases;
}

static json_t *notes_to_json(const struct progress *p)
{
	json_t *notes = json_array();

	for (size_t i = 0; i < p->n_notes; i++)
		json_array_append_new(notes, wire_string(p->notes[i]));
	return notes;
}

/* Whether the operation made the checkpoint that the record names, or came from it. */
static bool has_checkpoint(const struct op *op)
{
	return !strcmp(op->kind, "checkpoint") || !strcmp(op->kind, "restore");
}

json_t *op_summary(const struct op *op)
{
	const struct progress *p = &op->progress;
	double seconds = clock_since_s(p->start_ns), downtime = 0, drain = 0;
	const char *path = op->target->checkpoint_path;

	if (p->stopped_ns && p->released_ns)
		downtime = (double)(p->released_ns - p->stopped_ns) / (double)NS_PER_S;
	if (p->released_ns && p->drained_ns)
		drain = (double)(p->drained_ns - p->released_ns) / (double)NS_PER_S;
	uint64_t by_data =
		op->data.sums.bytes < op->gpu_bytes ? op->data.sums.bytes : op->gpu_bytes;
	uint64_t bytes = op->image_bytes ? op->image_bytes : op->gpu_bytes;
	return json_pack(
		"{s:s,s:s,s:s,s:s?,s:o,s:f,s:f,s:f,s:o,s:I,s:I,s:f,s:I,s:I,s:I,s:I,s:f,s:I,s:o}",
		"operation", op->kind, "job", op->target->id, "job_name", op->target->name,
		"checkpoint", has_checkpoint(op) ? op->target->checkpoint : NULL, "path",
		path && has_checkpoint(op) ? wire_string(path) : json_null(), "seconds", seconds,
		"downtime_s", downtime, "drain_s", drain, "phases", phases_to_json(p), "gpu_bytes",
		(json_int_t)op->gpu_bytes, "image_bytes", (json_int_t)op->image_bytes, "gbps",
		seconds > 0 ? (double)bytes / 1e9 / seconds : 0.0, "data_bytes",
		(json_int_t)op->data.sums.bytes, "zero_bytes",
		(json_int_t)op->data.sums.spared.zero_bytes, "unchanged_bytes",
		(json_int_t)op->data.sums.spared.same_bytes, "disk_bytes",
		(json_int_t)op->data.sums.disk_bytes, "data_gbps",
		op->data.sums.seconds > 0
			? (double)op->data.sums.bytes / 1e9 / op->data.sums.seconds
			: 0.0,
		"driver_bytes", (json_int_t)(op->gpu_bytes - by_data), "notes", notes_to_json(p));
}

int op_check_thawed(const struct op *op, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	const struct proc_members members = target_members(op->target);

	if (target_has_ended(op->target) || proc_members_read(&tree, &members, NULL) < 0)
		return 0;
	for (size_t i = 0; i < tree.n; i++) {
		auto_free char *cgroup = machine_frozen_cgroup(tree.items[i].id.pid);

		if (!cgroup)
			continue;
		brumate_fail(err, EBUSY, "job %s: process %d (%s) is frozen with its cgroup %s",
			     op->target->id, tree.items[i].id.pid, tree.items[i].comm, cgroup);
		brumate_hint(err,
			     "whoever froze it can thaw it: an engine that paused a container, "
			     "a scheduler that suspended its job");
		brumate_error_exit(err, EXIT_FROZEN);
		return -EBUSY;
	}
	return 0;
}

/* A moment of the clock of operations by the one that others know as well; 0 stays 0. */
static uint64_t boot_time_of(uint64_t ns)
{
	uint64_t now_ns = clock_now_ns();

	return ns ? clock_boot_ns() - (now_ns > ns ? now_ns - ns : 0) : 0;
}

static void count(const struct op *op, int result)
{
	const struct job_outcome outcome = {
		.kind = op->kind,
		.result = result,
		.seconds = clock_since_s(op->progress.start_ns),
		.gpu_bytes = op->gpu_bytes,
		.image_bytes = op->image_bytes,
		.stopped_ns = boot_time_of(op->progress.stopped_ns),
		.released_ns = boot_time_of(op->progress.released_ns),
	};

	job_count(op->target, &outcome);
}

static double rounded(double seconds)
{
	return (double)(long long)(seconds * 1e6 + 0.5) / 1e6;
}

/* What the summary says, as far as it is worth keeping. */
static void tell_event(const struct op *op, json_t *summary)
{
	json_t *o = json_pack("{s:f,s:f,s:I,s:I,s:o}", "seconds",
			      rounded(json_number_value(json_object_get(summary, "seconds"))),
			      "downtime_s",
			      rounded(json_number_value(json_object_get(summary, "downtime_s"))),
			      "gpu_bytes", (json_int_t)op->gpu_bytes, "image_bytes",
			      (json_int_t)op->image_bytes, "gpus", event_gpus(op->target));

	if (o && has_checkpoint(op)) {
		json_object_set(o, "checkpoint", json_object_get(summary, "checkpoint"));
		json_object_set(o, "path", json_object_get(summary, "path"));
	}
	event_add(op->target, op->kind, o);
}

void op_finish(struct op *op, int result)
{
	if (result < 0) {
		count(op, result);
		return;
	}
	auto_json json_t *summary = op_summary(op);
	auto_free char *text = summary ? json_dumps(summary, JSON_INDENT(1)) : NULL;
	auto_free char *path = path_format("%s/last.json", op->target->dir);

	if (text && path && file_swap(AT_FDCWD, path, text, strlen(text), 0600) < 0)
		log_warn("the summary could not be stored: path=%s", path);
	tell_event(op, summary);
	count(op, 0);
	log_info("%s of job %s done: seconds=%.3f gpu_bytes=%llu image_bytes=%llu", op->kind,
		 op->target->id, clock_since_s(op->progress.start_ns),
		 (unsigned long long)op->gpu_bytes, (unsigned long long)op->image_bytes);
}
