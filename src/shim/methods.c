// SPDX-License-Identifier: MIT
/* The methods of io.brumate.job, which a shim serves. */
#include "shim/shim.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/fault.h"
#include "base/log.h"
#include "datapath/datapath.h"
#include "engine/fetched.h"
#include "engine/steps.h"
#include "job/events.h"
#include "job/standstill.h"
#include "process/pidns.h"
#include "process/reaper.h"

enum {
	ENV_MAX = 1 << 17,
	TIMEOUT_MS_MAX = INT32_MAX,
	GRACE_MS_DEFAULT = 10000,
	KILL_TIMEOUT_MS = 30000,
};

#define IN(state) (1u << (state))

int shim_reply_job(struct shim *s, struct wire_call_context *call, struct brumate_error *err)
{
	json_t *job;
	int r = shim_job_json(&job, s, err);

	if (r < 0)
		return r;
	auto_json json_t *reply = json_pack("{s:o}", "job", job);
	return wire_reply(call, reply);
}

/* ---- operations ---- */

/* The call that asked for an operation, and the shim that runs it. */
struct watcher {
	struct shim *shim;
	struct wire_call_context *call;
};

static void send_progress(void *arg, const struct progress_sample *sample)
{
	const struct watcher *w = arg;
	auto_json json_t *reply = json_pack("{s:o}", "progress", op_progress_to_json(sample));

	shim_note_progress(w->shim, sample);
	wire_reply_more(w->call, reply);
}

static void send_failure(void *arg, const struct brumate_error *why)
{
	const struct watcher *w = arg;

	wire_reply_failed(w->call, why);
}

static bool is_cancelled(void *arg)
{
	const struct watcher *w = arg;
	const bool cancelled = wire_call_is_cancelled(w->call);

	if (cancelled)
		w->shim->ending = true;
	return cancelled;
}

/* An operation as a method: what it is, when it may begin, and who does it. */
struct operation {
	const char *kind;
	unsigned where;	 /* REQUEST_SUSPEND … */
	unsigned states; /* IN(JOB_RUNNING) … */
	int (*run)(struct op *op, struct brumate_error *err);
	unsigned
		goal; /* the state that it is to reach, where that is all that is asked for; else 0 */
};

static const struct operation suspend_operation = { "suspend", REQUEST_SUSPEND, IN(JOB_RUNNING),
						    engine_suspend, IN(JOB_SUSPENDED) };
static const struct operation resume_operation = { "resume", REQUEST_RESUME, IN(JOB_SUSPENDED),
						   engine_resume, IN(JOB_RUNNING) };
static const struct operation checkpoint_operation = { "checkpoint", REQUEST_CHECKPOINT,
						       IN(JOB_RUNNING) | IN(JOB_SUSPENDED),
						       engine_checkpoint };
static const struct operation restore_operation = { "restore", REQUEST_RESTORE,
						    IN(JOB_CREATED) | IN(JOB_CHECKPOINTED) |
							    IN(JOB_EXITED) | IN(JOB_LOST),
						    engine_restore };

/* The image that a restore is of; it comes from here or from elsewhere. "of": whose it is, where the job is a copy of
 * that one. */
static int open_image(struct op *op, json_t *parameters, struct brumate_error *err)
{
	const char *path, *url, *of;
	json_t *remote;
	int r;

	if ((r = wire_get_string(parameters, "of", &of, err)) < 0 ||
	    (r = wire_get_string(parameters, "path", &path, err)) < 0 ||
	    (r = wire_get_string(parameters, "url", &url, err)) < 0 ||
	    (r = wire_get_object(parameters, "remote", &remote, err)) < 0)
		return r;
	if (!path == !(url && remote))
		return wire_fail_parameter(err, "path", "expected either path, or url and remote");
	snprintf(op->restore.of, sizeof(op->restore.of), "%s", of ? of : op->target->id);
	if (path)
		return store_open(&op->restore.image, NULL, path, err);
	const struct fetched_for what = { op->target, op->restore.of, &op->progress,
					  &op->restore.image };
	return fetched_open(&op->restore.fetched, &what, url, remote, err);
}

/* Sockets that came with a restore, as well as those that are held at other addresses. */
static int take_sockets(struct listeners *ret, struct wire_call_context *call,
			struct brumate_error *err)
{
	auto_(listeners_fini) struct listeners l = LISTENERS_EMPTY;
	bool moved = false;
	int fd, r = 0;

	for (size_t i = 0; r == 0 && (fd = wire_call_take_fd(call, i)) >= 0; i++)
		r = listeners_add(&l, fd, err);
	for (size_t i = 0; r == 0 && i < ret->n; i++)
		if (!listeners_have(&l, ret->items[i].name)) {
			r = listeners_add(&l, take_fd(&ret->items[i].fd), err);
			moved = true;
		}
	if (r == 0 || moved)
		listeners_fini(ret); /* so that the owner binds them again */
	if (r == 0)
		*ret = take_struct(l, LISTENERS_EMPTY);
	return r;
}

/* Runs an operation that has begun, ends it, and replies with its summary. The next one may be under way by the time of
 * the reply, so it does not matter if the caller has hung up. */
static int run_op(struct shim *s, struct op *op, const struct operation *what,
		  const struct brumate_conf *conf, struct wire_call_context *call,
		  struct brumate_error *err)
{
	int r = hooks_before(s, conf, op->kind, err);

	if (r == 0 && what->where == REQUEST_RESTORE)
		r = take_sockets(&s->listeners, call, err);
	if (r == 0)
		r = what->run(op, err);

	s->ending = true;
	fetched_close(take_ptr(&op->restore.fetched));
	store_image_fini(
		&op->restore
			 .image); /* before the reply, after which the caller may remove the checkpoint */
	if (r < 0) {
		if (!*s->job.ports) /* their owner has them */
			listeners_fini(&s->listeners);
		log_warn("%s of job %s failed: reason=\"%s\"", op->kind, op->target->id, err->text);
		op_finish(op, r);
		if (r == -ECANCELED)
			event_add_failure(op->target, op->kind, err->text);
		else
			hooks_failed(s, op->kind, err->text);
		if (err->code == EPIPE)
			err->code = EIO; /* the caller would take EPIPE for the end of this shim */
		shim_end(s);
		return r;
	}
	op_finish(op, 0);
	hooks_after(s, conf, op);
	auto_json json_t *reply = json_pack("{s:o}", "summary", op_summary(op));
	if (what->where == REQUEST_RESTORE && reply) {
		json_object_set_new(reply, "job", job_to_json(&s->job));
		json_object_set_new(reply, "log_bytes",
				    json_integer((json_int_t)op->restore.log_bytes));
	}
	shim_end(s); /* before the reply, so that the caller's next operation finds the job free */
	fault_point("shim.answer");
	wire_reply(call, reply);
	return 0;
}

/* The same, of one that would only be. */
static int foresee(struct shim *s, struct op *op, struct wire_call_context *call,
		   struct brumate_error *err)
{
	json_t *foreseen = NULL;
	int r = engine_foresee(&foreseen, op, err);
	auto_json json_t *reply = json_pack("{s:o*}", "foreseen", foreseen);

	shim_end(s);
	return r < 0 ? r : wire_reply(call, reply);
}

/* Whether the job is already as the caller wants it. With its memory elsewhere than asked for, it is not. */
static bool is_reached(const struct job *job, const struct operation *what,
		       const struct request *request)
{
	return (what->goal & IN(job->state)) && !request->n_pairs &&
	       (job->state != JOB_SUSPENDED || job->parked == request->park);
}

/* Takes the record for @op; 1: there is nothing to do. */
static int begin(struct shim *s, struct op *op, const struct operation *what,
		 struct brumate_error *err)
{
	const unsigned states = what->states | what->goal;
	const uint32_t wait_ms = op->request->wait_ms;
	int r = wait_ms ? shim_begin_within(s, what->kind, states, wait_ms, &op->progress, err)
			: shim_begin(s, what->kind, states, err);

	if (r < 0 || (what->states & IN(s->job.state)))
		return r;
	if (is_reached(&s->job, what, op->request))
		return 1;
	shim_end(s);
	return shim_begin(s, what->kind, what->states, err); /* which says why not */
}

static int reply_reached(struct shim *s, struct op *op, struct wire_call_context *call,
			 struct brumate_error *err)
{
	auto_json json_t *summary = op_summary(op);
	auto_json json_t *reply = json_pack("{s:O}", "summary", summary);

	shim_end(s);
	if (!reply || json_object_set_new(summary, "already", json_true()) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	wire_reply(call, reply);
	return 0;
}

static int operate(struct shim *s, const struct operation *what, struct wire_call_context *call,
		   json_t *parameters, struct brumate_error *err)
{
	struct watcher watcher = { s, call };
	const struct progress_caller caller = { &watcher, send_progress, is_cancelled,
						send_failure };
	auto_(request_fini) struct request request = { 0 };
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	auto_(op_fini) struct op op;
	int r = request_decode(&request, what->where, parameters, err);

	op_init(&op, what->kind, &s->job.target, &caller, &request);
	if (r == 0 && what->where == REQUEST_CHECKPOINT)
		r = wire_get_bool(parameters, "unnamed", &request.unnamed, err);
	if (request.wake) /* connections that wait at its ports wait on */
		request.tcp_skip_in_flight = true;
	if (r == 0)
		r = conf_load(&conf, err);
	if (r == 0 && what->where == REQUEST_RESTORE)
		r = open_image(&op, parameters, err);
	if (r == 0) {
		wire_call_wait(call, request.wait_ms);
		r = begin(s, &op, what, err);
		wire_call_wait(call, false);
	}
	if (r != 0)
		return r < 0 ? r : reply_reached(s, &op, call, err);
	shim_prepare_op(s, &op, &request, &conf);
	if (request.dry_run)
		return foresee(s, &op, call, err);
	if (what->where == REQUEST_RESTORE) {
		shim_life_begins(s);
	}
	mend_secure(s);
	return run_op(s, &op, what, &conf, call, err);
}

static int method_suspend(void *arg, struct wire_call_context *call, json_t *parameters,
			  struct brumate_error *err)
{
	return operate(arg, &suspend_operation, call, parameters, err);
}

static int method_resume(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	return operate(arg, &resume_operation, call, parameters, err);
}

static int method_checkpoint(void *arg, struct wire_call_context *call, json_t *parameters,
			     struct brumate_error *err)
{
	bool self = false;
	int r = wire_get_bool(parameters, "self", &self, err);

	if (r < 0)
		return r;
	return self ? asked_checkpoint(arg, call, parameters, err)
		    : operate(arg, &checkpoint_operation, call, parameters, err);
}

static int method_restore(void *arg, struct wire_call_context *call, json_t *parameters,
			  struct brumate_error *err)
{
	return operate(arg, &restore_operation, call, parameters, err);
}

/* ---- the job's life ---- */

static int get_env(char ***ret, json_t *parameters, struct brumate_error *err)
{
	json_t *list = NULL;
	int r = wire_get_array(parameters, "env", &list, err);
	size_t n = json_array_size(list);

	if (r < 0)
		return r;
	if (n > ENV_MAX)
		return wire_fail_parameter(err, "env", "too long");
	char **env = calloc(n + 1, sizeof(*env));
	if (!env)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < n; i++) {
		env[i] = (char *)json_string_value(json_array_get(list, i)); /* borrowed */
		if (!env[i] || !strchr(env[i], '=')) {
			free(env);
			return wire_fail_parameter(err, "env", "expected strings NAME=VALUE");
		}
	}
	*ret = env;
	return 0;
}

/* With our library, or, where the driver moves the memory, as a job of the driver if it has such. */
static int start_command(struct shim *s, char *const *env, struct brumate_error *err)
{
	struct job *job = &s->job;
	auto_free char **own = NULL, *tool = NULL;
	size_t first = 0;
	int r;

	if (job->data_path == JOB_DATA_BROKER) {
		r = job_make_agent_dir(&job->target, err);
		if (r == 0)
			need_begin(s);
		if (r == 0)
			r = agent_environment(&own, &first, job, env, err);
	} else {
		tool = driver_job_tool(job, env);
		if (!tool)
			return spawn_job(job, env, NULL, err);
		r = driver_job_environment(&own, &first, job, env, err);
	}
	if (r < 0)
		return r;
	r = spawn_job(job, own, tool, err);
	for (size_t i = first; own[i]; i++)
		free(own[i]);
	return r;
}

static int method_start(void *arg, struct wire_call_context *call, json_t *parameters,
			struct brumate_error *err)
{
	struct shim *s = arg;
	auto_free char **env = NULL;
	int r;

	if ((r = get_env(&env, parameters, err)) < 0 ||
	    (r = shim_begin(s, "start", IN(JOB_CREATED), err)) < 0)
		return r;
	shim_life_begins(s);
	r = start_command(s, env, err);
	if (r == 0) {
		fault_register_peer("job", job_command(&s->job).pid);
		fault_register_peer("reaper", s->job.root.pid);
		fault_point("start.started");
		r = job_set_state(&s->job, JOB_RUNNING, err);
	}
	shim_end(s);
	return r < 0 ? r : shim_reply_job(s, call, err);
}

static int method_adopt(void *arg, struct wire_call_context *call, json_t *parameters,
			struct brumate_error *err)
{
	struct shim *s = arg;
	int r = shim_begin(s, "manage", IN(JOB_CREATED), err);

	(void)parameters;
	if (r < 0)
		return r;
	shim_life_begins(s);
	if (job_has_ended(&s->job))
		r = brumate_fail(err, ESRCH, "process %d has ended", s->job.root.pid);
	else
		r = job_set_state(&s->job, JOB_RUNNING, err);
	shim_end(s);
	return r < 0 ? r : shim_reply_job(s, call, err);
}

static int begin_release(struct shim *s, struct brumate_error *err)
{
	int r = shim_begin(s, "release", IN(JOB_RUNNING) | IN(JOB_CREATED), err);

	if (r < 0) {
		auto_(job_fini) struct job seen = JOB_EMPTY;

		if (job_load(&seen, s->job.id, NULL) == 0 && seen.state == JOB_SUSPENDED)
			brumate_hint(err, "resume it first: brumate resume %s", seen.id);
		return r;
	}
	if (!job_has_ended(&s->job))
		return 0;
	shim_end(s);
	return brumate_fail(err, ESRCH, "job %s has ended", s->job.id);
}

/* Gives the processes back: they run on, and nothing of ours is about them any more. What shim and keeper hold of
 * their memory is only a copy, as the job runs. */
static int method_release(void *arg, struct wire_call_context *call, json_t *parameters,
			  struct brumate_error *err)
{
	struct shim *s = arg;
	int r = begin_release(s, err);

	(void)parameters;
	if (r < 0)
		return r;
	vault_clear(&s->vault, &s->job.target);
	r = job_release(&s->job, err);
	if (r < 0) {
		shim_end(s);
		return r;
	}
	log_info("job %s is released: pid=%d", s->job.id, s->job.root.pid);
	auto_json json_t *reply = json_object();
	shim_leave(s);
	return wire_reply(call, reply);
}

/* The job has ended, and is to be forgotten. Nothing begins on it any more. */
static int method_remove(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	struct shim *s = arg;
	struct brumate_error left = BRUMATE_ERROR_NONE;
	int r = shim_begin(s, "removal", 0, err);

	if (r < 0)
		return r;
	r = job_remove(&s->job, true, &left);
	if (r < 0) {
		shim_end(s);
		*err = left;
		return r;
	}
	auto_json json_t *reply = json_pack("{s:s?}", "left", r > 0 ? left.text : NULL);
	shim_leave(s);
	return wire_reply(call, reply);
}

/* A checkpoint of that id is to be removed: the record does not name it any more. */
static int method_forget(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	struct shim *s = arg;
	const char *id;
	int r = wire_need_string(parameters, "checkpoint", &id, err);

	if (r == 0)
		r = shim_begin(s, "removal of its checkpoint", IN(JOB_RUNNING) | IN(JOB_SUSPENDED),
			       err);
	if (r < 0)
		return r;
	if (s->job.checkpoint && !strcmp(s->job.checkpoint, id)) {
		free(take_ptr(&s->job.checkpoint));
		free(take_ptr(&s->job.checkpoint_path));
		r = job_save(&s->job, err);
	}
	shim_end(s);
	return r < 0 ? r : shim_reply_job(s, call, err);
}

static int method_status(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	(void)parameters;
	return shim_reply_job(arg, call, err);
}

/* Blocks until the job is over, @call's caller has gone, or process @process_fd (a pidfd; -1: none) has ended. */
static void await_end(struct shim *s, struct wire_call_context *call, int process_fd,
		      int timeout_ms)
{
	auto_close int life = shim_life_fd(s);
	struct pollfd fds[] = { { .fd = life },
				{ .fd = wire_call_fd(call), .events = POLLRDHUP },
				{ .fd = process_fd, .events = POLLIN } };

	wire_call_wait(call, true);
	if (life >= 0)
		while (poll(fds, 3, timeout_ms) < 0 && errno == EINTR)
			;
	wire_call_wait(call, false);
}

static int method_wait(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	(void)parameters;
	await_end(arg, call, -1, -1);
	return shim_reply_job(arg, call, err);
}

/* Takes the job off the GPU before it is killed. Others report that driver 595.71 hangs the host when a process
 * gets SIGKILL that the driver has restored and that is on the GPU. Nothing is done while an operation is under
 * way. */
static void leave_gpu(struct shim *s)
{
	auto_(op_fini) struct op op;

	shim_op_init(s, &op, "kill");
	if (shim_begin(s, "kill", IN(JOB_RUNNING), NULL) < 0)
		return;
	if (s->job.restored && op_find_gpus(&op, NULL) == 0)
		step_discard_gpus(&op);
	shim_end(s);
}

/* The command, which tells its children as it likes, and orphans, whom nobody else tells. */
static void signal_members(const struct job *seen, const struct proc_members *members, int signal)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	const bool has_reaper = reaper_is(seen->root);

	proc_members_read(&tree, members, NULL);
	for (size_t i = has_reaper; i < tree.n; i++)
		if (i == 0 || proc_is_orphan(members, &tree.items[i]) ||
		    (has_reaper && tree.items[i].ppid == seen->root.pid))
			proc_signal_as(tree.items[i].id, signal, seen->uid);
}

/* Sends SIGTERM and waits @grace_ms (0: does neither), then sends SIGKILL until nothing of the job is left. */
static int end_job(struct shim *s, struct wire_call_context *call, const struct job *seen,
		   int grace_ms, struct brumate_error *err)
{
	const struct proc_members members = job_members(seen);
	auto_close int command_fd = proc_open(job_command(seen));

	if (grace_ms) {
		signal_members(seen, &members, SIGTERM);
		standstill_wake(&seen->target);
		await_end(s, call, command_fd, grace_ms);
	}
	leave_gpu(s);
	int r = proc_members_kill(&members, deadline_in_ms(KILL_TIMEOUT_MS));
	if (r < 0 && r != -ESRCH)
		return brumate_fail(err, -r, "job %s: %m", seen->id);
	await_end(s, call, -1, KILL_TIMEOUT_MS);
	return shim_reply_job(s, call, err);
}

static int method_kill(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	struct shim *s = arg;
	int64_t signal = 0, grace_ms = GRACE_MS_DEFAULT;
	int r;

	if ((r = wire_get_int(parameters, "signal", 0, 64, &signal, err)) < 0 ||
	    (r = wire_get_int(parameters, "grace_ms", 0, TIMEOUT_MS_MAX, &grace_ms, err)) < 0)
		return r;
	auto_(job_fini) struct job seen = JOB_EMPTY;
	if ((r = job_load(&seen, s->job.id, err)) < 0)
		return r;
	if (job_has_ended(&seen))
		return brumate_fail(err, ESRCH, "job %s has ended (%s)", seen.id,
				    job_state_name(seen.state));

	if (signal && signal != SIGKILL) {
		const struct proc_id command = job_command(&seen);

		r = proc_signal_as(command, (int)signal, seen.uid);
		return r < 0 ? brumate_fail(err, -r, "process %d: %m", command.pid)
			     : shim_reply_job(s, call, err);
	}
	return end_job(s, call, &seen, signal ? 0 : (int)grace_ms, err);
}

/* ---- looking ---- */

static json_t *findings_to_json(const struct scan_report *report)
{
	static const char *const levels[] = {
		[SCAN_NOTE] = "note",
		[SCAN_SUSPECT] = "warn",
		[SCAN_REFUSE] = "fail",
	};
	json_t *list = json_array();

	for (size_t i = 0; i < report->n; i++)
		json_array_append_new(list, json_pack("{s:s,s:s,s:s,s:s}", "level",
						      levels[report->items[i].level], "key",
						      report->items[i].what, "text",
						      report->items[i].text, "hint",
						      report->items[i].hint));
	return list;
}

/* The kernel ends all processes of a pid namespace with its init. */
static int add_namespace(const struct job *job, struct scan_report *report,
			 struct brumate_error *err)
{
	struct scan_finding f = { .level = SCAN_NOTE, .pid = job->init.pid, .what = "namespace" };

	if (!job->init.pid)
		return 0;
	snprintf(f.text, sizeof(f.text),
		 "the job runs in its own pid namespace, because one of its process ids was taken; "
		 "process "
		 "%d (%s) is its init: if that ends, so does the job",
		 job->init.pid, PIDNS_INIT_PROGRAM);
	int r = scan_add(report, &f);
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

static int add_memory(struct op *op, struct scan_report *report, struct brumate_error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < op->data.n_agents; i++) {
		const struct agent *a = &op->data.agents[i].agent;
		struct scan_finding f = { .level = SCAN_NOTE, .pid = a->id.pid, .what = "memory" };

		snprintf(f.text, sizeof(f.text),
			 "process %d: %.1f MiB of device memory go by the data path, %.1f MiB and "
			 "its "
			 "contexts by the driver",
			 a->id.pid, (double)a->managed_bytes / 0x1p20,
			 (double)a->driver_bytes / 0x1p20);
		r = scan_add(report, &f);
	}
	uint64_t kept = vault_baseline_bytes(op->data.vault);
	if (r == 0 && kept) {
		struct scan_finding f = { .level = SCAN_NOTE, .what = "memory" };

		snprintf(f.text, sizeof(f.text),
			 "%.1f MiB of host memory hold a copy of its device memory (--keep-copy)",
			 (double)kept / 0x1p20);
		snprintf(f.hint, sizeof(f.hint), "a resume without --keep-copy lets go of it");
		r = scan_add(report, &f);
	}
	return r < 0 ? brumate_fail(err, -r, "%m") : 0;
}

/* Takes the record, and makes @ret an operation that knows GPUs and agents. Ended by shim_end() where that did not fail. */
static int begin_scan(struct shim *s, struct op *ret, struct brumate_error *err)
{
	int r = shim_begin(s, "scan", IN(JOB_RUNNING) | IN(JOB_SUSPENDED), err);

	shim_op_init(s, ret, "scan");
	if (r < 0)
		return r;
	r = op_find_gpus(ret, err);
	if (r == 0)
		r = op_find_agents(ret, true, err);
	if (r < 0)
		shim_end(s);
	return r;
}

static int method_scan(void *arg, struct wire_call_context *call, json_t *parameters,
		       struct brumate_error *err)
{
	struct shim *s = arg;
	auto_(scan_report_fini) struct scan_report report = SCAN_REPORT_EMPTY;
	auto_(op_fini) struct op op;
	int r = begin_scan(s, &op, err);

	(void)parameters;
	if (r < 0)
		return r;
	r = preflight_scan(&op, SCAN_GPU | SCAN_CRIU | SCAN_SLOW, &report, err);
	if (r == 0)
		r = add_memory(&op, &report, err);
	if (r == 0)
		r = add_namespace(&s->job, &report, err);
	shim_end(s);
	if (r < 0)
		return r;
	auto_json json_t *reply = json_pack("{s:o}", "findings", findings_to_json(&report));
	return wire_reply(call, reply);
}

/* How many pieces it has; null: it does not tell. */
static json_t *count_pieces(struct datapath *d, struct datapath_agent *a)
{
	auto_free struct agent_piece *pieces = NULL;
	size_t n = 0;
	int r = agents_reach(d, a, NULL);

	if (r == 0)
		r = agent_list(&a->agent, &pieces, &n, NULL);
	agent_detach(&a->agent);
	return r < 0 ? json_null() : json_integer((json_int_t)n);
}

/* How much device memory of each process the data path moves, and how much the driver, as its agent reports. */
static json_t *memory_to_json(struct op *op)
{
	json_t *list = json_array();

	for (size_t i = 0; i < op->data.n_agents; i++) {
		const struct agent *a = &op->data.agents[i].agent;

		json_array_append_new(list,
				      json_pack("{s:i,s:I,s:I,s:o}", "pid", a->id.pid, "data_bytes",
						(json_int_t)a->managed_bytes, "driver_bytes",
						(json_int_t)a->driver_bytes, "pieces",
						count_pieces(&op->data, &op->data.agents[i])));
	}
	return list;
}

static int method_memory(void *arg, struct wire_call_context *call, json_t *parameters,
			 struct brumate_error *err)
{
	struct shim *s = arg;
	auto_(op_fini) struct op op;
	int r = begin_scan(s, &op, err);

	(void)parameters;
	if (r < 0)
		return r;
	auto_json json_t *reply = json_pack("{s:o}", "processes", memory_to_json(&op));
	shim_end(s);
	return wire_reply(call, reply);
}

const struct wire_method shim_methods[] = {
	{ "io.brumate.job.Start", method_start },
	{ "io.brumate.job.Adopt", method_adopt },
	{ "io.brumate.job.Status", method_status },
	{ "io.brumate.job.Suspend", method_suspend },
	{ "io.brumate.job.Resume", method_resume },
	{ "io.brumate.job.Checkpoint", method_checkpoint },
	{ "io.brumate.job.Restore", method_restore },
	{ "io.brumate.job.Hold", listen_hold_method },
	{ "io.brumate.job.Schedule", schedule_method },
	{ "io.brumate.job.Release", method_release },
	{ "io.brumate.job.Remove", method_remove },
	{ "io.brumate.job.Forget", method_forget },
	{ "io.brumate.job.Kill", method_kill },
	{ "io.brumate.job.Wait", method_wait },
	{ "io.brumate.job.Scan", method_scan },
	{ "io.brumate.job.Memory", method_memory },
};
const size_t shim_n_methods = sizeof(shim_methods) / sizeof(shim_methods[0]);
