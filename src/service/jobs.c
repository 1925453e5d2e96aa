// SPDX-License-Identifier: MIT
/*
 * Methods about jobs that do not change their state: Run, List, Status, Manage, Release, Kill, Wait, Remove. A job's
 * shim does the work; answers that the record on disk has are given without it.
 */
#include "service/jobs.h"
#include "service/access.h"
#include "service/resolve.h"
#include "service/service.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/conf.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/paths.h"
#include "client/shim.h"
#include "gpu/vendor.h"
#include "job/counts.h"
#include "job/labels.h"
#include "process/pidns.h"
#include "process/reaper.h"
#include "wire/agent.h"

enum {
	END_TIMEOUT_MS = 30000,
	SHIM_TRIES = 5,
	LOOK_TIMEOUT_MS = 1000,
	SHIM_PAUSE_MS = 200,
	STILL_MS = 2000,
	STILL_AT_WORK_MS = 10000,
	RECOVER_TIMEOUT_MS = 180000, /* may have to wait for a CRIU of the dead shim */
	SETTLE_TIMEOUT_MS = RECOVER_TIMEOUT_MS,
	SETTLE_LOOK_MS = 500, /* at whether the shim has died: no event says so */
};

/* The shim died during the call. Another one takes the job over and repairs it, so that the caller gets the result.
 * First waits for the end of the old shim: it may have closed this connection before it released the lock and the
 * socket, by whose absence the new one is started. */
static void after_shim_died(const struct job *j, struct proc_id shim, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	const char *state = NULL;
	struct wire w;

	brumate_wrap(err, -EPIPE, "the shim of job %s ended", j->id);
	brumate_hint(err, "see %s/shim.log; `brumate ps` says what became of the job", j->dir);
	proc_wait_gone(shim, deadline_in_ms(END_TIMEOUT_MS));
	if (shim_connect(&w, j, NULL) < 0)
		return;
	if (wire_call(&w, "io.brumate.job.Status", NULL, NULL, 0, NULL, NULL, &reply,
		      deadline_in_ms(RECOVER_TIMEOUT_MS), NULL) == 0)
		state = json_string_value(json_object_get(json_object_get(reply, "job"), "state"));
	wire_fini(&w);
	if (!state)
		return;
	brumate_hint(err, "another one has taken the job over: it is %s; see %s/shim.log", state,
		     j->dir);
	if (!strcmp(state, "running"))
		brumate_error_exit(err, EXIT_STILL_RUNNING);
	if (!strcmp(state, "lost"))
		brumate_error_exit(err, EXIT_JOB_LOST);
}

/* How long the shim may be stopped during a call. Wait waits for the end of the job, even if the shim is stopped; an
 * operation is undone when the shim continues. */
static uint32_t still_ms_for(const struct service_call *call, const char *method)
{
	if (!strcmp(method, "Wait"))
		return 0;
	return call->on_reply ? STILL_AT_WORK_MS : STILL_MS;
}

/* Makes one call to the present shim, or to a new one. @ret_shim: which one it was. Returns 1 if it closed the
 * connection without having begun the request. */
static int ask_shim(const struct service_call *call, const struct job *j, const char *method,
		    json_t *parameters, json_t **ret, struct proc_id *ret_shim,
		    struct brumate_error *err)
{
	char full[64];
	struct wire w;
	int r = shim_connect(&w, j, err);
	if (r < 0)
		return r;

	*ret_shim = shim_identify(&w);
	snprintf(full, sizeof(full), "io.brumate.job.%s", method);
	r = relay_call(&w, full, parameters, call, still_ms_for(call, method), ret, err);
	bool unheard = w.unheard;
	wire_fini(&w);
	return r == -EPIPE && unheard ? 1 : r;
}

static int fail_turned_away(const struct job *j, struct proc_id shim, struct brumate_error *err)
{
	brumate_fail(err, EBUSY, "job %s: its shim (process %d) turns callers away", j->id,
		     shim.pid);
	brumate_hint(err, "it has no thread, file descriptor or memory left for them; free some, "
			  "and try again");
	return -EBUSY;
}

int shim_relay(const struct service_call *call, const struct job *j, const char *method,
	       json_t *parameters, json_t **ret, struct brumate_error *err)
{
	struct proc_id shim = PROC_ID_NONE;
	int r = ask_shim(call, j, method, parameters, ret, &shim, err);

	/* A shim that is ending does not accept clients, and one without free threads closes connections; this call
	 * may have been in its queue. */
	for (int tries = 1; r == 1 && tries < SHIM_TRIES; tries++) {
		proc_wait_gone(shim, deadline_in_ms(SHIM_PAUSE_MS));
		r = ask_shim(call, j, method, parameters, ret, &shim, err);
	}
	if (r == 1)
		return fail_turned_away(j, shim, err);
	if (r == -EPIPE)
		after_shim_died(j, shim, err);
	return r;
}

/* Whether the record on disk describes a short-lived state: its shim may be unable to write a new record. */
static bool is_doubtful(const struct job *j)
{
	bool lives = j->state == JOB_RUNNING || j->state == JOB_SUSPENDED;

	return (job_state_is_passing(j->state) || (lives && job_has_ended(j))) &&
	       !shim_has_ended(j);
}

/* What the shim that is there says (owned); NULL if none answers at once. Starts none. */
static json_t *ask_at_once(const struct job *j, const char *method)
{
	auto_json json_t *reply = NULL;
	struct wire w;

	if (shim_find(&w, j, NULL) < 0)
		return NULL;
	int r = wire_call(&w, method, NULL, NULL, 0, NULL, NULL, &reply,
			  deadline_in_ms(LOOK_TIMEOUT_MS), NULL);
	wire_fini(&w);
	return r < 0 ? NULL : take_ptr(&reply);
}

/* The job as known to its shim (owned). */
static json_t *ask_who_knows(const struct job *j)
{
	auto_json json_t *reply = ask_at_once(j, "io.brumate.job.Status");

	return json_incref(json_object_get(reply, "job"));
}

/* The Job of @j, with what @l observes of it; the brokers have not been asked yet. */
static json_t *describe_at_sight(struct observation *l, const struct job *j)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	auto_json json_t *o = is_doubtful(j) ? ask_who_knows(j) : NULL;

	if (!o)
		o = job_and_processes_to_json(j, &tree);
	return o && observe_job(l, o, j, &tree) == 0 ? take_ptr(&o) : NULL;
}

json_t *describe_job(const struct job *j)
{
	auto_(observation_fini) struct observation l = OBSERVATION_EMPTY;
	json_t *o = describe_at_sight(&l, j);

	observe_gpus(&l);
	return o;
}

static int reply_job(const struct job *j, json_t **ret, struct brumate_error *err)
{
	return service_answer(ret, err, "{s:o}", "job", describe_job(j));
}

int get_simulated(json_t *parameters, bool *ret, struct brumate_error *err)
{
	const char *gpu;
	int r = wire_get_string(parameters, "gpu", &gpu, err);
	if (r < 0)
		return r;
	if (gpu && *gpu && strcmp(gpu, "simulated"))
		return wire_fail_parameter(err, "gpu", "expected \"\" or \"simulated\"");
	if (gpu) {
		*ret = *gpu;
		return 0;
	}
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	r = conf_load(&conf, err);
	*ret = r == 0 && conf.gpu == CONF_GPU_SIMULATED;
	return r;
}

/* Reads what moves the job's device memory, from the parameters or else the configuration. */
static int get_data_path(json_t *parameters, enum job_data_path *ret, struct brumate_error *err)
{
	static const char *const words[] = { "auto", "broker", "driver", NULL };
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	const struct gpu_kind kind = gpu_kind_here(false);
	const char *name = gpu_kind_vendor(&kind)->interposer;
	auto_free char *library = name ? path_find_helper(name) : NULL;
	const char *word;
	int i, r = wire_get_string(parameters, "data_path", &word, err);

	if (r == 0)
		r = conf_load(&conf, err);
	if (r < 0)
		return r;
	i = (int)conf.data_path;
	if (word && conf_word(&i, word, words) < 0)
		return wire_fail_parameter(err, "data_path", "expected auto, broker or driver");
	if (i == CONF_DATA_PATH_BROKER && !library) {
		brumate_fail(err, EOPNOTSUPP, "%s is not installed",
			     name ? name : "a library for it");
		brumate_hint(err, "install it, or start the job with --data-path driver");
		return -EOPNOTSUPP;
	}
	*ret = i == CONF_DATA_PATH_DRIVER || !library ? JOB_DATA_DRIVER : JOB_DATA_BROKER;
	return 0;
}

/* An array of strings as argv: NULL-terminated, the array owned, its strings borrowed. */
static int get_strings(json_t *parameters, const char *key, size_t min, const char ***ret,
		       struct brumate_error *err)
{
	json_t *array, *item;
	size_t i;
	int r = wire_get_array(parameters, key, &array, err);
	if (r < 0)
		return r;
	if (json_array_size(array) < min)
		return wire_fail_parameter(err, key, "is missing or too short");

	const char **strings = calloc(json_array_size(array) + 1, sizeof(*strings));
	if (!strings)
		return brumate_fail(err, ENOMEM, "%m");
	json_array_foreach (array, i, item) {
		strings[i] = json_string_value(item);
		if (!strings[i]) {
			free(strings);
			return wire_fail_parameter(err, key, "expected an array of strings");
		}
	}
	*ret = strings;
	return 0;
}

static int check_path(const char *key, const char *path, struct brumate_error *err)
{
	return path && path[0] != '/' ? wire_fail_parameter(err, key, "expected an absolute path")
				      : 0;
}

/* Removes the record of a job that never started. @with_log: its log, too. */
static void forget_job(const struct job *j, bool with_log)
{
	struct job again;

	if (job_load(&again, j->id, NULL) < 0)
		return;
	job_remove(&again, with_log, NULL);
	job_fini(&again);
}

static int start_job(const struct service_call *call, const struct job_spec *spec, json_t *env,
		     json_t **ret, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_json json_t *start = json_pack("{s:O}", "env", env);
	if (!start)
		return brumate_fail(err, ENOMEM, "%m");

	int r = job_create(&j, spec, err);
	if (r < 0)
		return r;
	r = shim_relay(call, &j, "Start", start, ret, err);
	if (r < 0)
		forget_job(&j, true);
	return r;
}

/* Directory of the simulated driver, in which a job finds it first. Owned. */
static char *find_simulator(const struct gpu_vendor *vendor)
{
	char *path = path_find_helper(vendor->simulated_driver);
	char *slash = path ? strrchr(path, '/') : NULL;

	if (slash)
		*slash = '\0';
	return path;
}

/* A copy of @env with @dir first in LD_LIBRARY_PATH. Owned, NULL if out of memory. */
static json_t *env_with_libraries(json_t *env, const char *dir)
{
	static const char variable[] = "LD_LIBRARY_PATH=";
	json_t *copy = json_array(), *item;
	const char *before = "";
	size_t i;

	json_array_foreach (env, i, item) {
		const char *text = json_string_value(item);

		if (!strncmp(text, variable, strlen(variable)))
			before = text + strlen(variable);
		else
			json_array_append(copy, item);
	}
	auto_free char *value = path_format("%s%s%s%s", variable, dir, *before ? ":" : "", before);
	if (!value || json_array_append_new(copy, json_string(value)) < 0) {
		json_decref(copy);
		return NULL;
	}
	return copy;
}

/* The environment of the job: the caller's, with the path of the simulated driver if it is used. */
static int make_env(json_t **ret, json_t *parameters, bool simulated, struct brumate_error *err)
{
	json_t *given = json_object_get(parameters, "env");
	auto_json json_t *env = json_is_array(given) ? json_incref(given) : json_array();
	auto_free char *simulator = NULL;
	const char *dir;
	int r = wire_get_string(parameters, "libdir", &dir, err);

	if (r < 0)
		return r;
	if (!dir && simulated) {
		const struct gpu_kind kind = gpu_kind_here(true);
		const struct gpu_vendor *vendor = gpu_kind_vendor(&kind);

		simulator = find_simulator(vendor);
		if (!simulator)
			return brumate_fail(err, ENOENT,
					    "the simulated driver is not installed (%s)",
					    vendor->simulated_driver);
		dir = simulator;
	}
	*ret = dir ? env_with_libraries(env, dir) : take_ptr(&env);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* The calling process, with which the job ends. */
static int get_owner(struct proc_id *ret, const struct service_call *call, json_t *parameters,
		     struct brumate_error *err)
{
	bool with_caller = false;
	int r = wire_get_bool(parameters, "with_caller", &with_caller, err);

	if (r < 0 || !with_caller)
		return r;
	if (!call->pid)
		return wire_fail_parameter(err, "with_caller", "the caller's process is not known");
	return proc_identify(ret, call->pid, err);
}

int service_run(const struct service_call *call, json_t *parameters, json_t **ret,
		struct brumate_error *err)
{
	auto_free const char **argv = NULL, **env = NULL;
	auto_(labels_free) char **labels = NULL;
	struct job_spec spec = { .uid = call->uid, .gid = call->gid };
	int r = get_strings(parameters, "argv", 1, &argv, err);

	if (r == 0)
		r = get_strings(parameters, "env", 0, &env, err);
	if (r == 0)
		r = wire_need_string(parameters, "cwd", &spec.cwd, err);
	if (r == 0)
		r = check_path("cwd", spec.cwd, err);
	if (r == 0)
		r = wire_get_string(parameters, "name", &spec.name, err);
	if (r == 0)
		r = wire_get_string(parameters, "log", &spec.log, err);
	if (r == 0)
		r = check_path("log", spec.log, err);
	if (r == 0)
		r = get_simulated(parameters, &spec.simulated, err);
	if (r == 0)
		r = get_data_path(parameters, &spec.data_path, err);
	if (r == 0)
		r = get_owner(&spec.owner, call, parameters, err);
	if (r == 0)
		r = labels_from_json(&labels, json_object_get(parameters, "labels"), err);
	if (r == 0)
		r = job_attributes_decode(&spec.attributes, parameters, err);
	if (r == 0 && *spec.attributes.hook)
		r = check_path("hook", spec.attributes.hook, err);
	if (r == -EBADMSG && err)
		err->code = EINVAL; /* of a caller's parameter */
	if (r < 0)
		return r;
	spec.labels = labels;

	auto_json json_t *job_env = NULL;
	spec.argv = (char *const *)argv;
	r = make_env(&job_env, parameters, spec.simulated, err);
	return r < 0 ? r : start_job(call, &spec, job_env, ret, err);
}

enum { RECENT_MS = 3600 * 1000 };

struct listing {
	const struct service_call *call;
	json_t *jobs;
	struct observation seen;
	bool recent, counts;
	json_int_t n_folded;
	bool failed;
};

/* What is not known to have ended counts as recent. */
static bool ended_long_ago(const struct job *j)
{
	uint64_t ended_ms;

	return job_ended_ms(&ended_ms, j) && ended_ms + RECENT_MS < clock_wall_ns() / NS_PER_MS;
}

/* What a suspended or saved job needs again stands in its record. Others are asked. NULL: not known. */
static json_t *device_memory(const struct job *j)
{
	json_int_t bytes = 0;
	json_t *process;
	size_t i;

	for (i = 0; i < j->n_gpus; i++)
		bytes += (json_int_t)j->gpus[i].bytes;
	if (j->state == JOB_SUSPENDED || j->state == JOB_CHECKPOINTED)
		return json_integer(bytes);
	if (j->state != JOB_RUNNING || j->data_path != JOB_DATA_BROKER)
		return NULL;
	auto_json json_t *asked = ask_at_once(j, "io.brumate.job.Memory");
	if (!asked)
		return NULL;
	bytes = 0;
	json_array_foreach (json_object_get(asked, "processes"), i, process)
		bytes += json_integer_value(json_object_get(process, "data_bytes")) +
			 json_integer_value(json_object_get(process, "driver_bytes"));
	return json_integer(bytes);
}

/* Where its shim has died, another one listens for it again, or puts right what was half done, which nobody else may come to ask for. */
static void take_over(const struct job *j, bool listens)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if ((!listens && !job_state_is_passing(j->state)) || !shim_has_ended(j))
		return;
	/* In a job's own namespace of pids it would end with that job. */
	auto_free char *inside = pidns_own_status_path();
	if (inside)
		return;
	if (shim_start(j->dir, &err) < 0)
		log_warn("nobody %s job %s: reason=\"%s\"", listens ? "listens for" : "puts right",
			 j->id, err.text);
	else if (listens) /* it does by the time that it answers */
		json_decref(ask_who_knows(j));
}

static void list_job(void *arg, const struct job *j, const char *id,
		     const struct brumate_error *why)
{
	struct listing *l = arg;
	json_t *o = NULL;

	const bool listens = j && j->state == JOB_CHECKPOINTED && *j->ports;

	if (j && !l->counts && service_may_put_right())
		take_over(j, listens);
	if (l->recent && j && !listens && ended_long_ago(j)) {
		l->n_folded++;
		return;
	}
	if (j)
		o = describe_at_sight(&l->seen, j);
	else
		o = json_pack("{s:s,s:s,s:s,s:i,s:i,s:i,s:i,s:[],s:s,s:s,s:b,s:b,s:b,s:s,s:b,s:i,s:"
			      "s,s:{}}",
			      "id", id, "name", "", "state", "lost", "processes", 0,
			      "gpu_processes", 0, "uid", 0, "gid", 0, "argv", "cwd", "/", "created",
			      "", "simulated", 0, "by_pid", 0, "pid_namespace", 0, "data_path",
			      "driver", "parked", 0, "kept_bytes", 0, "message", why->text,
			      "labels");
	if (o && j && l->counts) {
		json_t *memory = device_memory(j);

		json_object_set_new(o, "counts", job_counts(&j->target));
		if (memory)
			json_object_set_new(o, "device_memory_bytes", memory);
	}
	if (json_array_append_new(l->jobs, o) < 0)
		l->failed = true;
}

int service_list(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_json json_t *jobs = json_array();
	struct listing l = { .call = call, .jobs = jobs };
	int r = wire_get_bool(parameters, "recent", &l.recent, err);

	if (r == 0)
		r = wire_get_bool(parameters, "counts", &l.counts, err);
	const uint64_t since_ms = l.recent ? clock_wall_ns() / NS_PER_MS - RECENT_MS : 0;
	size_t n_before = 0;
	if (r == 0)
		r = job_list_since(since_ms, &n_before, list_job, &l, err);
	if (r == 0)
		observe_gpus(&l.seen);
	observation_fini(&l.seen);
	if (r < 0)
		return r;
	json_t *folded = l.recent ? json_integer(l.n_folded + (json_int_t)n_before) : NULL;
	return service_answer(ret, err, "{s:O,s:o*}", "jobs", l.failed ? NULL : jobs, "folded",
			      folded);
}

/* A shim that was killed may still be on its way out when it is looked for first. */
static int replace_dead_shim(const struct job *j, struct brumate_error *err)
{
	struct wire w;

	if (!shim_has_ended(j))
		return 0;
	int r = shim_connect(&w, j, err);
	if (r == 0)
		wire_fini(&w);
	return r;
}

/* Waits until no operation on @j is under way: every change of the record is a rename in its directory. Starts
 * another shim if a dead one left an incomplete operation. @until_ns: -ETIMEDOUT then, as where a shim is stopped. */
static int settle(const struct service_call *call, struct job *j, uint64_t until_ns,
		  struct brumate_error *err)
{
	auto_close int fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);

	if (fd < 0 || inotify_add_watch(fd, j->dir, IN_MOVED_TO) < 0)
		return brumate_fail(err, errno, "watch %s: %m", j->dir);

	for (;;) {
		auto_(job_fini) struct job now = JOB_EMPTY;
		char events[4096];
		struct pollfd fds[1 + CANCEL_FDS] = { { .fd = fd, .events = POLLIN },
						      call->cancel.fds[0],
						      call->cancel.fds[1] };
		int r = job_load(&now, j->id, err);

		if (r < 0)
			return r;
		if (!job_state_is_passing(now.state)) {
			struct job old = *j;

			*j = now;
			now = old;
			return 0;
		}
		r = replace_dead_shim(&now, err);
		if (r == 0 && !deadline_left_ms(until_ns))
			r = brumate_fail(err, ETIMEDOUT, "job %s is %s still", j->id,
					 job_state_name(now.state));
		if (r < 0)
			return r;
		if (poll(fds, 1 + CANCEL_FDS, SETTLE_LOOK_MS) < 0 && errno != EINTR)
			return brumate_fail(err, errno, "poll: %m");
		if (fds[1].revents || fds[2].revents)
			return brumate_fail(err, ECANCELED, "cancelled");
		while (read(fd, events, sizeof(events)) > 0)
			; /* any event means the same: check again */
	}
}

/* The same call for cleaning up after it: sends nothing, and is not cancelled. */
static struct service_call patient_call(const struct service_call *call)
{
	struct service_call patient = *call;

	patient.on_reply = NULL;
	for (int i = 0; i < CANCEL_FDS; i++)
		patient.cancel.fds[i].fd = -1;
	return patient;
}

void forget_settled_job(const struct service_call *call, struct job *j, bool with_log)
{
	struct service_call patient = patient_call(call);

	if (settle(&patient, j, deadline_in_ms(SETTLE_TIMEOUT_MS), NULL) == 0)
		forget_job(j, with_log);
}

int service_status(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *word;
	bool settled = false, exactly = false;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = wire_get_bool(parameters, "settled", &settled, err);
	if (r == 0)
		r = wire_get_bool(parameters, "exactly", &exactly, err);
	if (r == 0)
		r = exactly ? resolve_job_exactly(&j, word, err) : job_find(&j, word, err);
	if (r == 0 && settled)
		r = settle(call, &j, DEADLINE_NEVER, err);
	return r < 0 ? r : reply_job(&j, ret, err);
}

/* ---- taking in, ending, waiting, forgetting ---- */

enum {
	COMMAND_BYTES_MAX = 4 << 20,
	ENVIRONMENT_BYTES_MAX = 4 << 20,
	ANCESTORS_MAX = 64,
	GRACE_MS_MAX = 3600 * 1000,
	GRACE_MS_DEFAULT = 10000,
};

/* Command and directory of a running process, for its record. Owns what it points to. */
struct command_line {
	char *text; /* arguments, each terminated by a NUL */
	char **argv;
	char cwd[PATH_MAX];
};

static void command_line_fini(struct command_line *c)
{
	free(c->text);
	free(c->argv);
}
DEFINE_AUTO_FINI(struct command_line, command_line_fini)

static int read_command_line(struct command_line *ret, const struct proc_info *root,
			     struct brumate_error *err)
{
	char path[64];
	size_t len = 0, n = 0;

	snprintf(path, sizeof(path), "/proc/%d/cwd", (int)root->id.pid);
	ssize_t cwd_len = readlink(path, ret->cwd, sizeof(ret->cwd) - 1);
	if (cwd_len < 0)
		return brumate_fail(err, errno, "%s: %m", path);
	ret->cwd[cwd_len] = '\0';

	snprintf(path, sizeof(path), "/proc/%d/cmdline", (int)root->id.pid);
	int r = file_read(AT_FDCWD, path, COMMAND_BYTES_MAX, &ret->text, &len);
	if (r < 0)
		return brumate_fail(err, -r, "%s: %m", path);
	for (size_t i = 0; i < len; i += strlen(ret->text + i) + 1)
		n++;
	ret->argv = calloc(n + 2, sizeof(*ret->argv));
	if (!ret->argv)
		return brumate_fail(err, ENOMEM, "%m");
	n = 0;
	for (size_t i = 0; i < len; i += strlen(ret->text + i) + 1)
		ret->argv[n++] = ret->text + i;
	if (n == 0) /* a program may overwrite its arguments: its name is left */
		ret->argv[0] = (char *)root->comm;
	return 0;
}

void give_back(const struct service_call *call, struct job *j)
{
	struct service_call patient = patient_call(call);

	if (settle(&patient, j, deadline_in_ms(SETTLE_TIMEOUT_MS), NULL) == 0 &&
	    shim_relay(&patient, j, "Release", NULL, NULL, NULL) < 0 && j->state == JOB_CREATED)
		forget_job(j, true);
}

/* Whether the first process of a container has a directory for agents, as set up by `brumate cdi`. Whether there are
 * agents in it is found out later. A process that was not named as a container counts as one if it has a pid
 * namespace of its own. */
static bool has_agents_inside(const struct newcomer *newcomer, const struct proc_info *root)
{
	static const char entry[] = AGENT_DIR_VARIABLE "=" AGENT_CONTAINER_DIR;
	auto_free char *env = NULL;
	char path[64];
	size_t len = 0;

	snprintf(path, sizeof(path), "/proc/%d/environ", (int)root->id.pid);
	if ((!newcomer->is_container && root->inner_pid == root->id.pid) ||
	    file_read(AT_FDCWD, path, ENVIRONMENT_BYTES_MAX, &env, &len) < 0)
		return false;
	for (size_t i = 0; i < len; i += strlen(env + i) + 1)
		if (!strcmp(env + i, entry))
			return true;
	return false;
}

static int adopt(struct job *ret, const struct service_call *call, const struct proc_info *root,
		 const struct newcomer *newcomer, struct brumate_error *err)
{
	auto_(command_line_fini) struct command_line line = { 0 };
	struct service_call quiet = *call;
	struct job j;
	int r = read_command_line(&line, root, err);
	if (r < 0)
		return r;

	struct job_spec spec = {
		.name = newcomer->name,
		.argv = line.argv,
		.cwd = line.cwd,
		.uid = newcomer->is_container ? getuid() : root->uid,
		.gid = newcomer->is_container ? getgid() : root->gid,
		.simulated = newcomer->simulated,
		.by_pid = true,
		.root = root->id,
		.data_path = has_agents_inside(newcomer, root) ? JOB_DATA_BROKER : JOB_DATA_DRIVER,
	};
	if (spec.data_path == JOB_DATA_BROKER &&
	    (r = get_data_path(NULL, &spec.data_path, err)) < 0)
		return r;
	r = job_create(&j, &spec, err);
	if (r < 0)
		return r;
	quiet.on_reply = NULL;
	r = shim_relay(&quiet, &j, "Adopt", NULL, NULL, err);
	if (r < 0) {
		give_back(call, &j);
		job_fini(&j);
		return r;
	}
	*ret = j;
	return 0;
}

/* Whether a process is one of those that would handle the job, and so cannot be in it. */
static bool is_of_brumate(const struct proc_info *p)
{
	static const char *const programs[] = { "brumate-shim", "brumate-broker", "brumate-init",
						"brumate-reaper", "brumated" };

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
		if (!strcmp(p->comm, programs[i]))
			return true;
	return false;
}

/* It has no memory of its own, and no signal ends it. */
static int refuse_kernel(const struct proc_info *root, struct brumate_error *err)
{
	return root->is_kernel ? brumate_fail(err, EINVAL,
					      "process %d cannot be a job: it is a thread of the "
					      "kernel (%s)",
					      (int)root->id.pid, root->comm)
			       : 0;
}

/* Refuses a tree that contains the caller, such as the shell of the command: stopping it would stop the command,
 * which could then not let it continue. */
static int refuse_own_tree(const struct service_call *call, const struct proc_tree *tree,
			   struct brumate_error *err)
{
	int root = tree->items[0].id.pid;

	for (size_t i = 0; i < tree->n; i++) {
		const struct proc_info *p = &tree->items[i];

		if (p->id.pid == call->pid || p->id.pid == getpid()) {
			brumate_fail(err, EINVAL,
				     "process %d cannot be a job: this command (process %d) "
				     "descends from it",
				     root, p->id.pid);
			brumate_hint(err, "name the process of the program alone, or call brumate "
					  "from elsewhere");
			return -EINVAL;
		}
		if (is_of_brumate(p))
			return brumate_fail(err, EINVAL,
					    "process %d cannot be a job: %s (process %d) is "
					    "brumate's own",
					    root, p->comm, p->id.pid);
	}
	return 0;
}

/* The id of the job whose root is the reaper @root, read from the command line of its shim, and whether its record is, or was,
 * in our directory. False: it has no shim at present. */
static bool read_id_of(const struct proc_info *root, char ret[static JOB_ID_BYTES], bool *ret_ours)
{
	auto_free char *jobs = path_format("%s/jobs", path_state_dir());
	auto_free char *line = NULL;
	size_t len = 0;

	if (proc_file_read(root->ppid, "cmdline", ENVIRONMENT_BYTES_MAX, &line, &len) < 0 ||
	    len < 2)
		return false;
	const char *last = line + len - 1; /* a NUL byte ends each */
	while (last > line && last[-1])
		last--;
	const char *slash = strrchr(last, '/');
	if (!slash || !job_id_is_valid(slash + 1))
		return false;
	snprintf(ret, JOB_ID_BYTES, "%s", slash + 1);
	*ret_ours = jobs && !strncmp(last, jobs, (size_t)(slash - last)) && !jobs[slash - last];
	return true;
}

/* Refuses a process of a job that another brumate manages, such as its user's own: the record there would not show what
 * we do to the job. */
static int refuse_anothers_job(pid_t pid, struct brumate_error *err)
{
	struct proc_info p;
	char id[JOB_ID_BYTES] = "";
	pid_t up = pid;

	for (int n = 0; n < ANCESTORS_MAX && up > 1 && proc_read(&p, up, NULL) == 0;
	     n++, up = p.ppid) {
		if (!reaper_is(p.id))
			continue;
		bool ours = false;
		const bool has_id = read_id_of(&p, id, &ours);

		/* Its shim has ended, or is about to, and there is no record here: we have released it. */
		if ((!has_id && p.uid == geteuid()) || ours)
			continue;
		brumate_fail(err, EEXIST,
			     "process %d belongs to job %s%sof uid %u, of another brumate",
			     (int)pid, id, has_id ? " " : "", (unsigned)p.uid);
		brumate_hint(
			err,
			"let its user do it: brumate suspend %s; or with the BRUMATE_STATE_DIR "
			"that it was started with",
			has_id ? id : "JOB");
		return -EEXIST;
	}
	return 0;
}

int take_in(struct job *ret, bool *ret_new, const struct service_call *call,
	    const struct newcomer *newcomer, struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	const pid_t pid = newcomer->pid;
	int r = newcomer->is_container ? access_container(&tree, pid, err)
				       : access_tree(&tree, pid, err);
	if (r < 0)
		return r;

	struct job j;
	if (job_find_by_pid(&j, pid, NULL) == 0) {
		*ret = j;
		*ret_new = false;
		return 0;
	}
	r = refuse_kernel(&tree.items[0], err);
	if (r == 0)
		r = refuse_own_tree(call, &tree, err);
	if (r == 0)
		r = refuse_anothers_job(pid, err);
	if (r == 0)
		r = adopt(ret, call, &tree.items[0], newcomer, err);
	if (r == 0)
		*ret_new = true;
	return r;
}

/* Replies with the present record: the shim may have changed it since @j was read. */
static int reply_fresh(const struct job *j, json_t **ret, struct brumate_error *err)
{
	auto_(job_fini) struct job now = JOB_EMPTY;
	int r = job_load(&now, j->id, err);

	return r < 0 ? r : reply_job(&now, ret, err);
}

static bool has_ended(const struct job *j)
{
	return j->state == JOB_EXITED || j->state == JOB_LOST || j->state == JOB_CHECKPOINTED;
}

int service_manage(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *name;
	bool simulated = false, is_new;
	int64_t pid = 0;
	int r = wire_get_int(parameters, "pid", 1, INT_MAX, &pid, err);

	if (r == 0 && !pid)
		r = wire_fail_parameter(err, "pid", "is missing");
	if (r == 0)
		r = wire_get_string(parameters, "name", &name, err);
	if (r == 0)
		r = get_simulated(parameters, &simulated, err);
	if (r < 0)
		return r;

	const struct newcomer newcomer = { (pid_t)pid, name, false, simulated };
	r = take_in(&j, &is_new, call, &newcomer, err);
	if (r < 0)
		return r;
	if (!is_new)
		return brumate_fail(err, EEXIST, "process %d belongs to job %s (%s) already",
				    (int)pid, j.id, j.name);
	return reply_fresh(&j, ret, err);
}

int service_release(const struct service_call *call, json_t *parameters, json_t **ret,
		    struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *word;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = resolve_job_exactly(&j, word, err);
	if (r < 0)
		return r;
	if (has_ended(&j)) {
		brumate_fail(err, ESRCH, "job %s is not running (%s)", j.id,
			     job_state_name(j.state));
		brumate_hint(err, "brumate rm %s forgets it", j.id);
		return -ESRCH;
	}
	return shim_relay(call, &j, "Release", NULL, ret, err);
}

/* Ends the job without its shim, which is stopped and finds out when it continues. Returns 0 or -errno. */
static int kill_by_record(const struct job *j, int number, uint64_t grace_ms,
			  struct brumate_error *err)
{
	const struct proc_id command = job_command(j);
	const bool ends = number == 0 || number == SIGKILL;
	int r = number == SIGKILL ? 0 : proc_signal_as(command, number ? number : SIGTERM, j->uid);

	if (!ends || (r < 0 && r != -ESRCH))
		return r < 0 ? brumate_fail(err, -r, "process %d: %m", command.pid) : 0;
	if (number == 0)
		proc_wait_gone(command, deadline_in_ms(grace_ms));
	r = target_kill_members(&j->target, deadline_in_ms(END_TIMEOUT_MS));
	return r < 0 && r != -ESRCH ? brumate_fail(err, -r, "job %s: %m", j->id) : 0;
}

int service_kill(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *word;
	int64_t number = 0, grace_ms = GRACE_MS_DEFAULT;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = wire_get_int(parameters, "signal", 0, NSIG - 1, &number, err);
	if (r == 0)
		r = wire_get_int(parameters, "grace_ms", 0, GRACE_MS_MAX, &grace_ms, err);
	if (r == 0)
		r = resolve_job_exactly(&j, word, err);
	if (r < 0)
		return r;
	if (has_ended(&j))
		return brumate_fail(err, ESRCH, "job %s is not running (%s)", j.id,
				    job_state_name(j.state));
	r = shim_relay(call, &j, "Kill", parameters, ret, err);
	if (r != -EHOSTDOWN)
		return r;
	*err = BRUMATE_ERROR_NONE;
	r = kill_by_record(&j, (int)number, (uint64_t)grace_ms, err);
	return r < 0 ? r : reply_fresh(&j, ret, err);
}

int service_wait(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const char *word;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = job_find(&j, word, err);
	if (r < 0)
		return r;
	if (has_ended(&j))
		return reply_fresh(&j, ret, err);
	return shim_relay(call, &j, "Wait", NULL, ret, err);
}

/* ---- abandoned jobs ---- */

enum { ABANDONED_TIMEOUT_MS = 60000 };

struct abandoned {
	const struct service_call *call;
	int ended;
};

/* Its shim ends the job as soon as it runs, and then removes the directory. */
static void end_abandoned(void *arg, const struct job *j, const char *id,
			  const struct brumate_error *why)
{
	struct abandoned *a = arg;
	auto_close int fd = inotify_init1(IN_CLOEXEC);
	struct wire w;

	if (!j || !job_is_abandoned(j) || fd < 0 ||
	    inotify_add_watch(fd, j->dir, IN_DELETE_SELF) < 0 || shim_connect(&w, j, NULL) < 0)
		return;
	wire_fini(&w);
	if (fd_wait(fd, POLLIN, deadline_in_ms(ABANDONED_TIMEOUT_MS)) == 0)
		a->ended++;
}

int end_abandoned_jobs(const struct service_call *call)
{
	struct abandoned a = { .call = call };

	return job_list(end_abandoned, &a, NULL) < 0 ? 0 : a.ended;
}

/* ---- removing ---- */

/* What Remove removes, or would. */
struct removal {
	const struct service_call *call;
	bool dry_run;
	bool checkpoint; /* else a job */
	char id[MANIFEST_ID_BYTES];
	char job[MANIFEST_ID_BYTES], job_name[MANIFEST_NAME_BYTES]; /* empty: unknown */
};

/* The search for a job whose record names a checkpoint. */
struct named_by {
	const char *path;
	struct job job; /* owned; id empty: none */
};

static void find_namer(void *arg, const struct job *j, const char *id,
		       const struct brumate_error *why)
{
	struct named_by *n = arg;

	if (!j || n->job.id[0] || !job_names_checkpoint(j, n->path))
		return;
	if (job_load(&n->job, id, NULL) < 0)
		n->job = JOB_EMPTY;
}

/* The checkpoint that the record of a job names stays as long as the job may need it: it may be all that is left of
 * the job. A living job does not need it. */
static int release_checkpoint(const struct removal *what, const char *path,
			      struct brumate_error *err)
{
	struct named_by n = { .path = path };
	auto_json json_t *p = json_pack("{s:s}", "checkpoint", what->id);
	int r = p ? job_list(find_namer, &n, err) : brumate_fail(err, ENOMEM, "%m");
	auto_(job_fini) struct job namer = n.job;

	if (r < 0 || !namer.id[0])
		return r;
	if (!job_has_ended(&namer))
		return what->dry_run ? 0 : shim_relay(what->call, &namer, "Forget", p, NULL, err);
	brumate_fail(err, EBUSY, "checkpoint %s: job %s (%s, %s) would be restored from it",
		     what->id, namer.id, namer.name, job_state_name(namer.state));
	brumate_hint(err, "forget the job first: brumate rm %s", namer.id);
	return -EBUSY;
}

static int remove_checkpoint(struct removal *what, const char *dir, const char *word,
			     struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	const struct manifest *m = &image.manifest;
	int r = access_image(&image, dir, word, err);
	bool damaged = r == -EBADMSG || r == -EPROTONOSUPPORT;
	if (r < 0 && !damaged)
		return r;
	if (strchr(word, '/'))
		return brumate_fail(err, EINVAL, "%s: expected an id; say where it is with --dir",
				    word);
	auto_free char *path = path_format("%s/%s", dir, word);
	if (!path)
		return brumate_fail(err, ENOMEM, "%m");
	what->checkpoint = true;
	snprintf(what->id, sizeof(what->id), "%s", word);
	snprintf(what->job, sizeof(what->job), "%s", m->job.id);
	snprintf(what->job_name, sizeof(what->job_name), "%s", m->job.name);
	r = store_refuse_pinned(dir, word, err);
	if (r == 0)
		r = release_checkpoint(what, path, err);
	return r < 0 || what->dry_run ? r : store_remove(dir, word, err);
}

/* Its processes do not all exist yet. A restore whose shim has died is repaired first. */
static int refuse_restoring(const struct service_call *call, struct job *j,
			    struct brumate_error *err)
{
	if (j->state == JOB_RESTORING && shim_has_ended(j)) {
		int r = settle(call, j, deadline_in_ms(SETTLE_TIMEOUT_MS), err);

		if (r < 0)
			return r;
	}
	if (j->state != JOB_RESTORING)
		return 0;
	brumate_fail(err, EBUSY, "job %s (%s) is %s", j->id, j->name, job_state_name(j->state));
	brumate_hint(err, "wait for it, or cancel it with Ctrl-C where it was started");
	return -EBUSY;
}

/* If there is no shim, makes sure that none begins an operation. -EWOULDBLOCK: there is one. */
static int remove_alone(struct job *j, struct brumate_error *err)
{
	auto_close int lock = job_keep_shims_out(j);
	auto_(job_fini) struct job now = JOB_EMPTY;

	if (lock < 0 && lock != -ENOENT)
		return lock == -EWOULDBLOCK ? lock : brumate_fail(err, -lock, "%s: %m", j->dir);
	int r = job_load(&now, j->id, err);
	return r < 0 ? r : job_remove(&now, true, err);
}

/* The shim removes it between two operations. An older shim cannot. */
static int remove_by_shim(const struct service_call *call, struct job *j, struct brumate_error *err)
{
	auto_json json_t *reply = NULL;
	const char *left = NULL;
	int r = shim_relay(call, j, "Remove", NULL, &reply, err);

	if (r == -EOPNOTSUPP)
		return job_remove(j, true, err);
	if (r == 0)
		r = wire_get_string(reply, "left", &left, err);
	if (r < 0 || !left)
		return r;
	brumate_fail(err, EBUSY, "%s", left);
	return 1;
}

static int remove_job(struct removal *what, struct job *j, struct brumate_error *err)
{
	int r = refuse_restoring(what->call, j, err);

	if (r < 0)
		return r;
	snprintf(what->id, sizeof(what->id), "%s", j->id);
	snprintf(what->job, sizeof(what->job), "%s", j->id);
	snprintf(what->job_name, sizeof(what->job_name), "%s", j->name);
	if (what->dry_run)
		return 0;
	r = remove_alone(j, err);
	if (r == -EWOULDBLOCK)
		r = remove_by_shim(what->call, j, err);
	return r == -ENOENT ? 0 : r; /* already removed by another process */
}

/* Reads what is to be removed: exactly one of "job", "checkpoint" and "what". */
static int get_what(struct resolve_question *ret, json_t *parameters, struct brumate_error *err)
{
	const char *job, *checkpoint, *what;
	int r = wire_get_string(parameters, "job", &job, err);

	if (r == 0)
		r = wire_get_string(parameters, "checkpoint", &checkpoint, err);
	if (r == 0)
		r = wire_get_string(parameters, "what", &what, err);
	if (r < 0)
		return r;
	if (!!job + !!checkpoint + !!what != 1)
		return wire_fail_parameter(err, "job", "expected one of job, checkpoint and what");
	ret->word = job ? job : checkpoint ? checkpoint : what;
	ret->kind = job ? "job" : checkpoint ? "checkpoint" : NULL;
	return 0;
}

static int remove_what(struct removal *what, json_t *parameters, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct resolve_question q = { .call = what->call };
	auto_free char *dir = NULL;
	int r = get_what(&q, parameters, err);

	if (r == 0)
		r = wire_get_bool(parameters, "dry_run", &what->dry_run, err);
	if (r == 0)
		r = resolve_in_store(&q, parameters, &dir, err);
	if (r == 0)
		r = resolve_exactly(&j, &q, err);
	if (r < 0)
		return r;
	return r == MEANS_JOB ? remove_job(what, &j, err)
			      : remove_checkpoint(what, dir, q.word, err);
}

int service_remove(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	struct removal what = { .call = call };
	struct brumate_error why = BRUMATE_ERROR_NONE;
	int r = remove_what(&what, parameters, &why);

	if (r < 0) {
		if (err)
			*err = why;
		return r;
	}
	json_t *job_name = *what.job_name ? wire_string(what.job_name) : NULL;
	json_t *left = r > 0 ? wire_string(why.text) : NULL;
	return service_answer(ret, err, "{s:s,s:s,s:s?,s:o?,s:o?}", "kind",
			      what.checkpoint ? "checkpoint" : "job", "id", what.id, "job",
			      *what.job ? what.job : NULL, "job_name", job_name, "left", left);
}
