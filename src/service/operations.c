// SPDX-License-Identifier: MIT
/*
 * Suspend, Resume, Checkpoint, Restore: which job is meant, whether the caller may, where the image
 * is; then the job's shim carries it out.
 */
#include "client/broker.h"
#include "service/access.h"
#include "service/gpu-map.h"
#include "service/jobs.h"
#include "service/meaning.h"
#include "service/meter.h"
#include "service/remote.h"
#include "service/service.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/conf.h"
#include "base/paths.h"
#include "store/memory.h"

enum { TIMEOUT_MS_MAX = INT_MAX };

/* Copies those of @keys that are there. Returns owned, NULL without memory. */
static json_t *pick(json_t *parameters, const char *const *keys)
{
	json_t *picked = json_object();

	for (; picked && *keys; keys++) {
		json_t *value = json_object_get(parameters, *keys);

		if (value && !json_is_null(value) && json_object_set(picked, *keys, value) < 0)
			return NULL;
	}
	return picked;
}

/* Types and ranges are checked here, so that no foreign value gets to a shim unseen. */
static int check_common(json_t *parameters, struct brumate_error *err)
{
	static const char *const flags[] = { "force", "leave_running", "tcp_close",
					     "park",  "keep_copy",     "live" };
	int64_t timeout_ms;
	const char *key;
	json_t *map;
	bool flag;
	int r = wire_get_int(parameters, "timeout_ms", 0, TIMEOUT_MS_MAX, &timeout_ms, err);

	if (r == 0)
		r = wire_get_string(parameters, "key", &key, err);
	if (r == 0)
		r = wire_get_array(parameters, "gpu_map", &map, err);
	for (size_t i = 0; r == 0 && i < sizeof(flags) / sizeof(flags[0]); i++)
		r = wire_get_bool(parameters, flags[i], &flag, err);
	return r;
}

/* The job that "job" or "pid" means; a process of none is taken in where @may_take_in. */
static int find_target(struct job *ret, const struct service_call *call, json_t *parameters,
		       bool may_take_in, struct brumate_error *err)
{
	const char *word;
	int64_t pid = 0;
	bool simulated;
	int r = check_common(parameters, err);

	if (r == 0)
		r = wire_get_string(parameters, "job", &word, err);
	if (r == 0)
		r = wire_get_int(parameters, "pid", 1, INT_MAX, &pid, err);
	if (r == 0)
		r = get_simulated(parameters, &simulated, err);
	if (r < 0)
		return r;
	if (!word == !pid)
		return wire_fail_parameter(err, "job", "want either job or pid");
	if (word)
		return access_job(ret, call, word, err);
	if (may_take_in)
		return take_in(ret, call, (pid_t)pid, NULL, simulated, err);

	auto_(proc_tree_fini) struct proc_tree tree = PROC_TREE_EMPTY;
	r = access_tree(&tree, call, (pid_t)pid, err);
	if (r == 0 && job_find_by_pid(ret, (pid_t)pid, NULL) < 0)
		return brumate_fail(err, ESRCH, "process %d belongs to no job", (int)pid);
	return r;
}

static int list_gpus(struct dev_gpu *ret, size_t *ret_n, bool simulated, struct brumate_error *err)
{
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	int r = broker_client_open(&broker, simulated, err);

	return r < 0 ? r : broker_client_gpus(&broker, ret, ret_n, err);
}

/* Numbers in "gpu_map" become UUIDs; only the driver knows which. */
static int resolve_map(json_t *parameters, bool simulated, struct brumate_error *err)
{
	json_t *map = json_object_get(parameters, "gpu_map");
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus = 0;
	json_t *resolved;
	int r = 0;

	if (!map)
		return 0;
	if (gpu_map_has_numbers(map))
		r = list_gpus(gpus, &n_gpus, simulated, err);
	if (r == 0)
		r = gpu_map_resolve(&resolved, map, gpus, n_gpus, err);
	if (r == 0 && json_object_set_new(parameters, "gpu_map", resolved) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return r;
}

/* What the caller leaves open is as the configuration says. */
static int add_defaults(json_t *parameters, bool restoring, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int r = conf_load(&conf, err);

	if (r < 0)
		return r;
	if (restoring && conf.tcp_close && !json_object_get(parameters, "tcp_close") &&
	    json_object_set_new(parameters, "tcp_close", json_true()) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if (json_object_get(parameters, "timeout_ms") || !conf.timeout_ms)
		return 0;
	uint64_t timeout_ms = conf.timeout_ms < TIMEOUT_MS_MAX ? conf.timeout_ms : TIMEOUT_MS_MAX;
	if (json_object_set_new(parameters, "timeout_ms", json_integer((json_int_t)timeout_ms)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return 0;
}

static int add_keep_copy(json_t *parameters, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	int r = json_object_get(parameters, "keep_copy") ? 0 : conf_load(&conf, err);

	if (r == 0 && conf.keep_copy &&
	    json_object_set_new(parameters, "keep_copy", json_true()) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	return r;
}

int service_suspend(const struct service_call *call, json_t *parameters, json_t **ret,
		    struct brumate_error *err)
{
	static const char *const keys[] = { "timeout_ms", "force", "park", "live", NULL };
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r = find_target(&j, call, parameters, true, err);
	if (r < 0)
		return r;

	auto_json json_t *picked = pick(parameters, keys);
	if (!picked)
		return brumate_fail(err, ENOMEM, "%m");
	r = add_defaults(picked, false, err);
	return r < 0 ? r : shim_relay(call, &j, "Suspend", picked, ret, err);
}

int service_resume(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	static const char *const keys[] = { "timeout_ms", "gpu_map", "keep_copy", NULL };
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r = find_target(&j, call, parameters, false, err);
	if (r < 0)
		return r;

	auto_json json_t *picked = pick(parameters, keys);
	if (!picked)
		return brumate_fail(err, ENOMEM, "%m");
	r = resolve_map(picked, j.simulated, err);
	if (r == 0)
		r = add_defaults(picked, false, err);
	if (r == 0)
		r = add_keep_copy(picked, err);
	return r < 0 ? r : shim_relay(call, &j, "Resume", picked, ret, err);
}

/* Made from the job's name unless the caller chose. A '/' or a leading '.' would leave the store. */
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

/* How memory is compressed: as the caller says, or the configuration. */
static int check_compress(json_t *parameters, struct brumate_error *err)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	enum chunks_compress compress;
	const char *word;
	int r = wire_get_string(parameters, "compress", &word, err);

	if (r < 0)
		return r;
	if (word)
		return chunks_parse_compress(&compress, word) < 0
			       ? wire_fail_parameter(err, "compress",
						     "want auto, none, lz4 or zstd")
			       : 0;
	r = conf_load(&conf, err);
	if (r < 0)
		return r;
	word = chunks_compress_word((enum chunks_compress)conf.compress);
	return json_object_set_new(parameters, "compress", json_string(word)) < 0
		       ? brumate_fail(err, ENOMEM, "%m")
		       : 0;
}

int service_checkpoint(const struct service_call *call, json_t *parameters, json_t **ret,
		       struct brumate_error *err)
{
	static const char *const keys[] = { "timeout_ms", "force", "leave_running", "compress",
					    "keep_copy",  "live",  "key",	    NULL };
	auto_free char *dir = NULL;
	const char *name;
	char id[MANIFEST_ID_BYTES];
	int r = wire_get_string(parameters, "name", &name, err);

	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r < 0)
		return r;

	auto_(job_fini) struct job j = JOB_EMPTY;
	r = find_target(&j, call, parameters, true, err);
	if (r == 0)
		r = choose_id(id, &j, dir, name, err);
	if (r < 0)
		return r;

	auto_json json_t *picked = pick(parameters, keys);
	if (!picked || json_object_set_new(picked, "id", json_string(id)) < 0 ||
	    json_object_set_new(picked, "dir", json_string(dir)) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	r = check_compress(picked, err);
	if (r == 0)
		r = add_keep_copy(picked, err);
	if (r == 0)
		r = add_defaults(picked, false, err);
	return r < 0 ? r : shim_relay(call, &j, "Checkpoint", picked, ret, err);
}

/* What a dead shim left half done is put right by the next one, before it answers: only then does the
 * record tell of the checkpoint. */
static int put_right(const struct service_call *call, struct job *j, struct brumate_error *err)
{
	auto_(job_fini) struct job old = *j;
	auto_json json_t *reply = NULL;
	bool half_done = j->state == JOB_CHECKPOINTING || j->state == JOB_RESTORING;
	int r = 0;

	if (half_done && !shim_is_alive(j))
		r = shim_relay(call, j, "Status", NULL, &reply, err);
	if (r == 0)
		r = job_load(j, old.id, err);
	if (r < 0)
		*j = JOB_EMPTY;
	return r;
}

/* A job stands for its latest checkpoint. */
static int find_image(struct store_image *ret, const struct meaning_question *q,
		      struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	int r = meaning_find(&j, q, err);

	if (r < 0)
		return r;
	if (r == MEANS_CHECKPOINT)
		return access_image(ret, q->call, q->dir, q->word, err);

	r = put_right(q->call, &j, err);
	if (r < 0)
		return r;
	if (!j.checkpoint_path)
		return brumate_fail(err, ENOENT, "job %s has no checkpoint", j.id);
	if (remote_is_url(j.checkpoint_path)) {
		brumate_fail(err, ENOENT, "the checkpoint of job %s is in an object store", j.id);
		brumate_hint(err, "brumate restore '%s'", j.checkpoint_path);
		return -ENOENT;
	}
	return access_image(ret, q->call, q->dir, j.checkpoint_path, err);
}

/* The record of the job that @m is of: the old one if it is still there, else a new one. */
static int find_or_create_job(struct job *ret, bool *ret_created, const struct manifest *m,
			      struct brumate_error *err)
{
	*ret_created = false;
	if (job_load(ret, m->job.id, NULL) == 0)
		return 0;

	struct job_spec spec = {
		.id = m->job.id,
		.name = m->job.name,
		.argv = m->job.argv,
		.cwd = m->job.cwd,
		.log = m->job.log,
		.uid = m->job.uid,
		.gid = m->job.gid,
		.simulated = m->job.simulated,
	};
	int r = job_create(ret, &spec, err);
	if (r == -EEXIST) { /* another job has the name now */
		spec.name = NULL;
		r = job_create(ret, &spec, err);
	}
	if (r == 0)
		*ret_created = true;
	return r;
}

/* @where: what tells the job's shim where the image is; borrowed. */
static int restore_image(const struct service_call *call, const struct manifest *m, json_t *where,
			 json_t *parameters, json_t **ret, struct brumate_error *err)
{
	static const char *const keys[] = { "timeout_ms", "gpu_map", "tcp_close",
					    "force",	  "key",     NULL };
	auto_(job_fini) struct job j = JOB_EMPTY;
	auto_json json_t *picked = pick(parameters, keys);
	bool created;

	if (!picked || !where || json_object_update(picked, where) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	int r = resolve_map(picked, m->job.simulated, err);
	if (r == 0)
		r = add_defaults(picked, true, err);
	if (r == 0)
		r = find_or_create_job(&j, &created, m, err);
	if (r < 0)
		return r;
	if (job_is_alive(&j)) {
		brumate_fail(err, EBUSY, "job %s (%s) is still there (%s)", j.id, j.name,
			     job_state_name(j.state));
		brumate_hint(err, "end it first: brumate kill %s", j.id);
		return -EBUSY;
	}
	r = shim_relay(call, &j, "Restore", picked, ret, err);
	if (r < 0 && created)
		forget_settled_job(call, &j);
	return r;
}

static int restore_from_afar(const struct service_call *call, json_t *parameters, json_t **ret,
			     struct brumate_error *err)
{
	auto_(remote_given_fini) struct remote_given g = REMOTE_GIVEN_EMPTY;
	auto_(remote_close) struct remote_image *image = NULL;
	auto_free char *word = NULL;
	struct meter meter = meter_of(call, "find", 1);
	int r = check_common(parameters, err);

	if (r == 0)
		r = remote_given_get(&g, parameters, err);
	if (r == 0)
		r = remote_place_split(&g.place, &word, err);
	if (r < 0)
		return r;
	meter_step(&meter);
	r = remote_open(&image, &g.config, &g.place, word, meter_progress, &meter, err);
	if (r < 0)
		return r;
	const struct manifest *m = remote_manifest(image);
	auto_free char *url = remote_url_of(&g.place, m->id);
	auto_json json_t *where = json_pack("{s:s?,s:O}", "url", url, "remote",
					    json_object_get(parameters, "remote"));
	return restore_image(call, m, where, parameters, ret, err);
}

/* For root alone: CRIU opens, binds and becomes with root's rights what the image and the paths in it say. */
int service_restore(const struct service_call *call, json_t *parameters, json_t **ret,
		    struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	struct meaning_question q = { .call = call, .by_latest = true };
	auto_free char *dir = NULL;
	int r = access_root(call, "restore a checkpoint", err);

	if (r == 0)
		r = wire_get_string(parameters, "checkpoint", &q.word, err);
	if (r == 0 && !q.word && json_object_get(parameters, "url"))
		return restore_from_afar(call, parameters, ret, err);
	if (r == 0)
		r = wire_need_string(parameters, "checkpoint", &q.word, err);
	if (r == 0)
		r = wire_get_string(parameters, "kind", &q.kind, err);
	if (r == 0)
		r = check_common(parameters, err);
	if (r == 0)
		r = meaning_in_store(&q, parameters, &dir, err);
	if (r == 0)
		r = find_image(&image, &q, err);
	if (r < 0)
		return r;
	auto_json json_t *where = json_pack("{s:s}", "path", image.path);
	return restore_image(call, &image.manifest, where, parameters, ret, err);
}
