// SPDX-License-Identifier: MIT
/*
 * Suspend, Resume, Checkpoint, Restore: find the job and the image and check the caller's permission; then the job's
 * shim does the work. Schedule: makes the shim checkpoint the job periodically.
 */
#include "service/access.h"
#include "service/jobs.h"
#include "service/move.h"
#include "service/resolve.h"
#include "service/service.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/start.h"
#include "client/broker.h"
#include "job/request.h"
#include "process/listeners.h"

/* A shim that was started here would live in the job's pid namespace, and end with it. */
static int check_shim_lives(const struct job *j, struct brumate_error *err)
{
	if (!shim_has_ended(j))
		return 0;
	brumate_fail(err, EAGAIN, "the shim of job %s (%s) has ended", j->id, j->name);
	brumate_hint(err, "a command about the job that is given outside of it starts another");
	return -EAGAIN;
}

/* The job of the calling process. Its shim waits for the end of the process that asks, so only the command can ask
 * for itself. */
static int find_own(struct job *ret, const struct service_call *call, struct brumate_error *err)
{
	if (call->pid != getpid())
		return wire_fail_parameter(err, "self", "is for the brumate command alone");
	int r = job_find_by_init(ret, NULL);
	if (r == 0)
		return check_shim_lives(ret, err);
	if (r == -ENOENT)
		r = job_find_by_pid(ret, call->pid, NULL);
	if (r == -ENOENT) {
		brumate_fail(err, ESRCH, "this process is not of a job");
		brumate_hint(err, "start its program with `brumate run`");
		return -ESRCH;
	}
	return r < 0 ? brumate_fail(err, -r, "the job of this process: %m") : 0;
}

static int find_container(struct service_found *ret, const char *word, struct brumate_error *err)
{
	/* Of a weak symbol the compiler takes it that it is there. */
	const struct service_edge *const *volatile edges = service_edges;

	for (const struct service_edge *const *edge = edges; edge && *edge; edge++)
		if ((*edge)->find)
			return (*edge)->find(ret, word, err);
	brumate_fail(err, EOPNOTSUPP, "containers: brumate was built without them");
	return -EOPNOTSUPP;
}

/* If a job has the container's name already, the new job gets another one. */
static int take_in_container(struct job *ret, bool *ret_new, const struct service_call *call,
			     const struct service_found *c, bool simulated,
			     struct brumate_error *err)
{
	struct newcomer newcomer = { c->pid, c->name, true, simulated };
	int r = *c->name ? take_in(ret, ret_new, call, &newcomer, err) : -EEXIST;

	if (r != -EEXIST)
		return r;
	*err = BRUMATE_ERROR_NONE;
	newcomer.name = NULL;
	return take_in(ret, ret_new, call, &newcomer, err);
}

/* The job for "job", "pid" or "container", of a request that was checked. A process without a job is taken in
 * (@ret_new), unless it is to be resumed. */
static int find_target(struct job *ret, bool *ret_new, const struct service_call *call,
		       json_t *parameters, unsigned where, struct brumate_error *err)
{
	struct service_found found = { 0 };
	const char *word, *container = NULL;
	int64_t pid = 0;
	bool simulated, self = false;
	int r = request_check(parameters, where, err);

	if (r == 0)
		r = wire_get_string(parameters, "job", &word, err);
	if (r == 0 && where != REQUEST_CHECKPOINT)
		r = wire_get_string(parameters, "container", &container, err);
	if (r == 0)
		r = wire_get_int(parameters, "pid", 1, INT_MAX, &pid, err);
	if (r == 0)
		r = get_simulated(parameters, &simulated, err);
	if (r == 0 && where == REQUEST_CHECKPOINT)
		r = wire_get_bool(parameters, "self", &self, err);
	if (r < 0)
		return r;
	if (self)
		return word || pid ? wire_fail_parameter(err, "self",
							 "cannot be combined with job or pid")
				   : find_own(ret, call, err);
	if (!!word + !!pid + !!container != 1)
		return wire_fail_parameter(err, "job", "expected one of job, pid and container");
	if (word)
		return job_find(ret, word, err);
	if (container && (r = find_container(&found, container, err)) < 0)
		return r;
	if (container)
		pid = found.pid;
	const struct newcomer process = { (pid_t)pid, NULL, false, simulated };
	if (where != REQUEST_RESUME)
		return container ? take_in_container(ret, ret_new, call, &found, simulated, err)
				 : take_in(ret, ret_new, call, &process, err);

	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	r = container ? access_container(&tree, (pid_t)pid, err)
		      : access_tree(&tree, (pid_t)pid, err);
	if (r == 0 && job_find_by_pid(ret, (pid_t)pid, NULL) < 0)
		return brumate_fail(err, ESRCH, "process %d belongs to no job", (int)pid);
	return r;
}

static int list_gpus(struct dev_gpu *ret, size_t *ret_n, const struct gpu_kind *kind,
		     struct brumate_error *err)
{
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	int r = broker_client_open(&broker, kind, err);

	return r < 0 ? r : broker_client_gpus(&broker, ret, ret_n, err);
}

/* Replaces numbers in "gpu_map" by UUIDs, which the driver has to be asked for. */
static int resolve_map(json_t *parameters, const struct gpu_kind *kind, struct brumate_error *err)
{
	json_t *map = json_object_get(parameters, "gpu_map");
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus = 0;
	json_t *resolved;
	int r = 0;

	if (!map)
		return 0;
	if (gpu_map_has_numbers(map))
		r = list_gpus(gpus, &n_gpus, kind, err);
	if (r == 0)
		r = gpu_map_resolve(&resolved, map, gpus, n_gpus, err);
	if (r == 0 && json_object_set_new(parameters, "gpu_map", resolved) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return r;
}

/* The options for @where of @parameters, with their defaults, in the form that the job's shim takes. Owned. */
static int make_request(json_t **ret, json_t *parameters, unsigned where,
			const struct gpu_kind *kind, struct brumate_error *err)
{
	auto_json json_t *request = request_pick(parameters, where);

	if (!request)
		return brumate_fail(err, ENOMEM, "%m");
	int r = resolve_map(request, kind, err);
	if (r == 0)
		r = request_add_defaults(request, where, err);
	if (r == 0)
		*ret = take_ptr(&request);
	return r;
}

static bool is_dry_run(json_t *parameters)
{
	return json_is_true(json_object_get(parameters, "dry_run"));
}

/* A process that was taken in for a failed operation is released again. */
static int change_state(const struct service_call *call, const char *method, unsigned where,
			json_t *parameters, json_t **ret, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_json json_t *request = NULL;
	bool is_new = false;
	int r = find_target(&j, &is_new, call, parameters, where, err);

	if (r == 0)
		r = make_request(&request, parameters, where, &j.gpu_kind, err);
	if (r == 0)
		r = shim_relay(call, &j, method, request, ret, err);
	if (is_new && (r < 0 || is_dry_run(parameters)))
		give_back(call, &j);
	return r;
}

int service_suspend(const struct service_call *call, json_t *parameters, json_t **ret,
		    struct brumate_error *err)
{
	return change_state(call, "Suspend", REQUEST_SUSPEND, parameters, ret, err);
}

int service_resume(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	return change_state(call, "Resume", REQUEST_RESUME, parameters, ret, err);
}

/* Makes the id of a checkpoint from the job's name, unless the caller chose @name. A '/' or a leading '.' could lead
 * out of the store. */
static int choose_id(char ret[static MANIFEST_ID_BYTES], const struct job *j, const char *dir,
		     const char *name, struct brumate_error *err)
{
	if (!name) {
		store_new_id(ret, dir, j->name);
		return 0;
	}
	if (strlen(name) >= MANIFEST_ID_BYTES || !*name || *name == '.' || *name == '-' ||
	    name[strspn(name,
			"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")]) {
		brumate_fail(err, EINVAL, "\"%s\" cannot be the name of a checkpoint", name);
		brumate_hint(err, "use up to %d letters, digits, '.', '_' and '-'",
			     MANIFEST_ID_BYTES - 1);
		return -EINVAL;
	}
	snprintf(ret, MANIFEST_ID_BYTES, "%s", name);
	return 0;
}

/* The command would be saved with the job, while it waits for its own end. */
static int refuse_from_inside(const struct job *j, const struct service_call *call,
			      struct brumate_error *err)
{
	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	const struct proc_members members = job_members(j);

	if (call->pid != getpid() || proc_members_read(&tree, &members, NULL) < 0)
		return 0;
	for (size_t i = 0; i < tree.n; i++)
		if (tree.items[i].id.pid == call->pid) {
			brumate_fail(err, EINVAL,
				     "job %s (%s) cannot be saved by a command that is part of it",
				     j->id, j->name);
			brumate_hint(err, "brumate checkpoint --self saves it once the command has "
					  "ended");
			return -EINVAL;
		}
	return 0;
}

int service_checkpoint(const struct service_call *call, json_t *parameters, json_t **ret,
		       struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_json json_t *request = NULL;
	auto_free char *dir = NULL;
	const char *name;
	bool is_new = false;
	char id[MANIFEST_ID_BYTES];
	int r = wire_get_string(parameters, "name", &name, err);

	if (r == 0)
		r = access_store_to_write(&dir, parameters, err);
	if (r == 0)
		r = find_target(&j, &is_new, call, parameters, REQUEST_CHECKPOINT, err);
	if (r == 0 && json_is_true(json_object_get(parameters, "self")) && is_dry_run(parameters))
		r = wire_fail_parameter(err, "dry_run", "cannot be combined with self");
	if (r == 0 && !json_is_true(json_object_get(parameters, "self")))
		r = refuse_from_inside(&j, call, err);
	if (r == 0)
		r = choose_id(id, &j, dir, name, err);
	if (r == 0)
		r = make_request(&request, parameters, REQUEST_CHECKPOINT, &j.gpu_kind, err);
	if (r == 0 && json_is_true(json_object_get(parameters, "self")) &&
	    json_object_set_new(request, "self", json_true()) < 0)
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0 && (json_object_set_new(request, "unnamed", json_boolean(!name)) < 0 ||
		       json_object_set_new(request, "id", json_string(id)) < 0 ||
		       json_object_set_new(request, "dir", json_string(dir)) < 0))
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = shim_relay(call, &j, "Checkpoint", request, ret, err);
	if (is_new && (r < 0 || is_dry_run(parameters)))
		give_back(call, &j);
	return r;
}

/* A new shim repairs the incomplete operation of a dead one before it answers: only then does the record name the
 * checkpoint. */
static int put_right(const struct service_call *call, struct job *j, struct brumate_error *err)
{
	auto_(job_fini) struct job old = *j;
	auto_json json_t *reply = NULL;
	bool half_done = j->state == JOB_CHECKPOINTING || j->state == JOB_RESTORING;
	int r = 0;

	if (half_done && shim_has_ended(j))
		r = shim_relay(call, j, "Status", NULL, &reply, err);
	if (r == 0)
		r = job_load(j, old.id, err);
	if (r < 0)
		*j = JOB_EMPTY;
	return r;
}

/* Searches a replacement for a damaged checkpoint. */
struct other_search {
	const char *job, *failed; /* ids */
	char found[MANIFEST_ID_BYTES];
};

static void consider_other(void *arg, const char *id, const struct store_image *i,
			   const struct brumate_error *why)
{
	struct other_search *s = arg;

	/* They are listed oldest first. */
	if (i && !strcmp(i->manifest.job.id, s->job) && strcmp(id, s->failed) &&
	    store_check(i, NULL) == 0)
		snprintf(s->found, sizeof(s->found), "%s", id);
}

/* If the checkpoint at @path of the job @id cannot be used, names the latest other one in the store that can, judging
 * by names and sizes. */
static void hint_other(const struct resolve_question *q, const char *path, const char *id,
		       struct brumate_error *err)
{
	const char *slash = path ? strrchr(path, '/') : NULL;
	auto_free char *dir = slash ? strndup(path, (size_t)(slash - path)) : NULL;
	auto_free char *usual = NULL;
	struct other_search s = { .job = id, .failed = slash ? slash + 1 : "" };
	bool unusable = err && (err->code == EBADMSG || err->code == ENOENT);

	if (!dir || !unusable || source_is_url(path) ||
	    store_list(dir, consider_other, &s, NULL) < 0 || !s.found[0] ||
	    access_store(&usual, NULL, NULL) < 0)
		return;
	bool elsewhere = q->dir_given || strcmp(dir, usual) != 0;
	brumate_hint(err, "the job has another checkpoint: brumate restore --checkpoint %s%s%s",
		     s.found, elsewhere ? " --dir " : "", elsewhere ? dir : "");
}

/* The latest checkpoint of a job whose record names none. */
static int find_latest(struct store_image *ret, const struct resolve_question *q,
		       const struct job *j, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, q->dir, j->id, err);

	if (r < 0 && r != -ENOENT)
		return r;
	if (r < 0 || strcmp(image.manifest.job.id, j->id) != 0)
		return brumate_fail(err, ENOENT, "job %s has no checkpoint", j->id);
	*ret = take_struct(image, STORE_IMAGE_EMPTY);
	return 0;
}

/* Opens the recorded checkpoint by its path, where there may be a different one by now. */
static int check_recorded(const struct store_image *i, const struct job *j,
			  struct brumate_error *err)
{
	if (!j->checkpoint || !strcmp(j->checkpoint, i->manifest.id))
		return 0;
	return brumate_fail(err, EBADMSG, "checkpoint %s of job %s: in its place is %s",
			    j->checkpoint, j->id, i->manifest.id);
}

/* Opens the checkpoint for the request; for a job, in @ret_job, its latest one. */
static int find_image(struct store_image *ret, char ret_job[static JOB_ID_BYTES],
		      const struct resolve_question *q, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r = resolve_word(&j, q, err);

	*ret_job = '\0';
	if (r < 0)
		return r;
	if (r == MEANS_CHECKPOINT)
		return access_image(ret, q->dir, q->word, err);
	snprintf(ret_job, JOB_ID_BYTES, "%s", j.id);

	r = put_right(q->call, &j, err);
	if (r < 0)
		return r;
	if (!j.checkpoint_path)
		return find_latest(ret, q, &j, err);
	if (source_is_url(j.checkpoint_path)) {
		brumate_fail(err, ENOENT, "the checkpoint of job %s is not on this machine", j.id);
		brumate_hint(err, "brumate restore '%s'", j.checkpoint_path);
		return -ENOENT;
	}
	r = access_image(ret, q->dir, j.checkpoint_path, err);
	if (r == 0)
		r = check_recorded(ret, &j, err);
	if (r < 0)
		hint_other(q, j.checkpoint_path, j.id, err);
	return r;
}

/* The job that is the result of a restore. */
struct restore_target {
	const char *name; /* of a new one, a copy; NULL: no copy */
	const char *job;  /* id of an existing one; empty: the one that was saved */
};

/* Creates the record of the job in @m, or of a copy of it. */
static int create_job(struct job *ret, const struct manifest *m, const char *copy,
		      struct brumate_error *err)
{
	struct job_spec spec = {
		.id = copy ? NULL : m->job.id,
		.name = copy ? copy : m->job.name,
		.argv = m->job.argv,
		.labels = m->job.labels,
		.cwd = m->job.cwd,
		.log = copy ? NULL : m->job.log,
		.uid = m->job.uid,
		.gid = m->job.gid,
		.vendor = m->job.gpu_vendor,
		.simulated = m->job.simulated,
	};
	int r = job_create(ret, &spec, err);
	if (r == -EEXIST && !copy) { /* another job has the name by now */
		spec.name = NULL;
		r = job_create(ret, &spec, err);
	}
	return r;
}

/* Finds the record of the job to be restored from @m, or creates one. */
static int find_or_create_job(struct job *ret, bool *ret_created, const struct manifest *m,
			      const struct restore_target *target, struct brumate_error *err)
{
	*ret_created = false;
	if (!target->name && job_load(ret, *target->job ? target->job : m->job.id, NULL) == 0)
		return 0;
	int r = create_job(ret, m, target->name, err);
	*ret_created = r == 0;
	return r;
}

/* The kernel would refuse it, too, but only after half of the work. */
static int refuse_other_user(const struct manifest *m, struct brumate_error *err)
{
	if (getuid() == 0 || m->job.uid == getuid())
		return 0;
	return brumate_fail(err, EPERM,
			    "checkpoint %s is of a job of uid %u: only root and that user can "
			    "restore it",
			    m->id, (unsigned)m->job.uid);
}

/* @where: the image's place, for the job's shim; borrowed. */
/* Sockets that a service manager holds for the job, and has given to this command. */
static int relay_with_sockets(const struct service_call *call, const struct job *j,
			      const char *method, json_t *parameters, json_t **ret,
			      struct brumate_error *err)
{
	struct service_call own = *call;
	int sockets[LISTENERS_MAX];
	const int n = start_take_sockets();

	if (n > LISTENERS_MAX)
		return brumate_fail(err, E2BIG, "LISTEN_FDS: %d sockets, of which %d are taken", n,
				    LISTENERS_MAX);
	for (int i = 0; i < n; i++)
		sockets[own.n_sockets++] = START_SOCKETS + i;
	own.sockets = sockets;
	return shim_relay(&own, j, method, parameters, ret, err);
}

static int restore_image(const struct service_call *call, const struct manifest *m,
			 const struct restore_target *target, json_t *where, json_t *parameters,
			 json_t **ret, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_json json_t *request = NULL;
	bool created = false, had_log;
	int r = refuse_other_user(m, err);

	struct gpu_kind kind = { .simulated = m->job.simulated };
	snprintf(kind.vendor, sizeof(kind.vendor), "%s", m->job.gpu_vendor);
	if (r == 0)
		r = make_request(&request, parameters, REQUEST_RESTORE, &kind, err);
	if (r == 0 && (!where || json_object_update(request, where) < 0 ||
		       json_object_set_new(request, "of", json_string(m->job.id)) < 0))
		r = brumate_fail(err, ENOMEM, "%m");
	if (r == 0)
		r = find_or_create_job(&j, &created, m, target, err);
	if (r < 0)
		return r;
	if (!job_has_ended(&j)) {
		brumate_fail(err, EBUSY, "job %s (%s) is still there (%s)", j.id, j.name,
			     job_state_name(j.state));
		brumate_hint(
			err,
			"end it first: brumate kill %s, or restore a copy next to it: --name NAME",
			j.id);
		return -EBUSY;
	}
	had_log = j.log && access(j.log, F_OK) == 0;
	r = relay_with_sockets(call, &j, "Restore", request, ret, err);
	if (r < 0 && created)
		forget_settled_job(call, &j, !had_log);
	return r;
}

static int restore_from_afar(const struct service_call *call, const char *name, json_t *parameters,
			     json_t **ret, struct brumate_error *err)
{
	const struct restore_target target = { name, "" };
	auto_(source_close) struct image_source *source = NULL;
	struct source_place p;
	struct meter meter = meter_of(call, "find", 1);
	int r = request_check(parameters, REQUEST_RESTORE, err);

	if (r == 0)
		r = place_get(&p, parameters, err);
	if (r < 0)
		return r;
	meter_step(&meter);
	r = p.kind->open(&source, &p, meter_progress, &meter, err);
	if (r < 0)
		return r;
	auto_json json_t *where = json_pack("{s:s,s:O}", "url", source->url, "remote", p.remote);
	return restore_image(call, source->manifest, &target, where, parameters, ret, err);
}

int service_restore(const struct service_call *call, json_t *parameters, json_t **ret,
		    struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	struct resolve_question q = { .call = call, .by_latest = true };
	struct restore_target target = { 0 };
	auto_free char *dir = NULL;
	char job[JOB_ID_BYTES];
	int r = wire_get_string(parameters, "checkpoint", &q.word, err);
	if (r == 0)
		r = wire_get_string(parameters, "name", &target.name, err);
	if (r == 0 && !q.word && json_object_get(parameters, "url"))
		return restore_from_afar(call, target.name, parameters, ret, err);
	if (r == 0)
		r = wire_need_string(parameters, "checkpoint", &q.word, err);
	if (r == 0)
		r = wire_get_string(parameters, "kind", &q.kind, err);
	if (r == 0)
		r = request_check(parameters, REQUEST_RESTORE, err);
	if (r == 0)
		r = resolve_in_store(&q, parameters, &dir, err);
	if (r == 0)
		r = find_image(&image, job, &q, err);
	if (r < 0)
		return r;
	target.job = job;
	auto_json json_t *where = json_pack("{s:s}", "path", image.path);
	r = restore_image(call, &image.manifest, &target, where, parameters, ret, err);
	if (r < 0)
		hint_other(&q, image.path, image.manifest.job.id, err);
	return r;
}

/* ---- schedule ---- */

/* Copies the interval of checkpoints and the rule for keeping them from @parameters to @ret. */
static int get_schedule(json_t *ret, json_t *parameters, struct brumate_error *err)
{
	static const struct {
		const char *key;
		int64_t min, max;
	} numbers[] = {
		{ "every_ms", 0, JOB_SCHEDULE_MS_MAX },
		{ "keep_last", 1, UINT_MAX },
		{ "keep_within_ms", 1, INT64_MAX },
	};

	for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
		int64_t value = -1;
		int r = wire_get_int(parameters, numbers[i].key, numbers[i].min, numbers[i].max,
				     &value, err);

		if (r < 0)
			return r;
		if (value >= 0 && json_object_set_new(ret, numbers[i].key, json_integer(value)) < 0)
			return brumate_fail(err, ENOMEM, "%m");
	}
	return json_object_get(ret, "every_ms")
		       ? 0
		       : wire_fail_parameter(err, "every_ms", "is missing");
}

/* Copies the options of its checkpoints. Those that are missing come from the configuration, at each checkpoint. */
static int get_schedule_request(json_t **ret, json_t *parameters, struct brumate_error *err)
{
	int r = request_check(parameters, REQUEST_SCHEDULE, err);

	if (r < 0)
		return r;
	return service_answer(ret, err, "o", request_pick(parameters, REQUEST_SCHEDULE));
}

int service_schedule(const struct service_call *call, json_t *parameters, json_t **ret,
		     struct brumate_error *err)
{
	auto_json json_t *passed = NULL;
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_free char *dir = NULL;
	const char *word;
	int r = wire_need_string(parameters, "job", &word, err);

	if (r == 0)
		r = get_schedule_request(&passed, parameters, err);
	if (r == 0)
		r = access_store_to_write(&dir, parameters, err);
	if (r == 0)
		r = get_schedule(passed, parameters, err);
	if (r == 0)
		r = job_find(&j, word, err);
	if (r < 0)
		return r;
	if (json_object_set_new(passed, "dir", json_string(dir)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return shim_relay(call, &j, "Schedule", passed, ret, err);
}
