// SPDX-License-Identifier: MIT
/* Checkpoints and Inspect: what is on disk, told without any shim. */
#include "service/access.h"
#include "service/jobs.h"
#include "service/meaning.h"
#include "service/service.h"

#include <errno.h>
#include <string.h>

#include "base/paths.h"
#include "store/usage.h"

struct listing {
	const struct service_call *call;
	const char *dir;
	json_t *checkpoints;
	struct usage_seen seen;
	bool failed;
};

static json_t *describe(const struct store_image *i, struct usage_seen *seen)
{
	const struct manifest *m = &i->manifest;
	struct usage usage;

	if (usage_of(&usage, i, seen) < 0)
		return NULL;
	return json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:b}", "id", m->id, "path",
			 i->path, "job", m->job.id, "job_name", m->job.name, "created", m->created,
			 "bytes", (json_int_t)manifest_whole_bytes(m), "disk_bytes",
			 (json_int_t)usage.disk_bytes, "shared_bytes",
			 (json_int_t)usage.shared_bytes, "gpus", (json_int_t)m->n_gpus, "processes",
			 (json_int_t)m->n_processes, "simulated", m->job.simulated);
}

static json_t *describe_damaged(const char *dir, const char *id, const struct brumate_error *why)
{
	auto_free char *path = path_format("%s/%s", dir, id);

	if (!path)
		return NULL;
	return json_pack("{s:s,s:s,s:i,s:i,s:i,s:b,s:s}", "id", id, "path", path, "bytes", 0,
			 "gpus", 0, "processes", 0, "simulated", 0, "error", why->text);
}

static void list_one(void *arg, const char *id, const struct store_image *i,
		     const struct brumate_error *why)
{
	struct listing *l = arg;
	uid_t uid = l->call->uid;

	/* Whose a damaged one is cannot be told. */
	if (uid != 0 && (!i || i->manifest.job.uid != uid))
		return;
	json_t *o = i ? describe(i, &l->seen) : describe_damaged(l->dir, id, why);
	if (json_array_append_new(l->checkpoints, o) < 0)
		l->failed = true;
}

int service_checkpoints(const struct service_call *call, json_t *parameters, json_t **ret,
			struct brumate_error *err)
{
	auto_json json_t *checkpoints = json_array();
	auto_free char *dir = NULL;
	int r = access_store(&dir, call, parameters, err);

	if (r < 0)
		return r;

	struct listing l = { .call = call, .dir = dir, .checkpoints = checkpoints };
	r = store_list(dir, list_one, &l, err);
	usage_seen_fini(&l.seen);
	if (r < 0)
		return r;
	json_t *reply = l.failed ? NULL : json_pack("{s:O}", "checkpoints", checkpoints);
	if (!reply)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = reply;
	return 0;
}

static int inspect_job(const struct service_call *call, const struct job *j, json_t **ret,
		       struct brumate_error *err)
{
	auto_json json_t *asked = NULL;

	if (j->data_path == JOB_DATA_BROKER && job_is_alive(j))
		shim_relay(call, j, "Memory", NULL, &asked, NULL);
	json_t *reply =
		json_pack("{s:o,s:o*,s:O*}", "job", describe_job(j), "last", job_last_summary(j),
			  "memory", json_object_get(asked, "processes"));
	if (!reply)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = reply;
	return 0;
}

static uint64_t region_bytes(const struct manifest *m, enum manifest_region_kind kind)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->memory.n_regions; i++)
		if (m->memory.regions[i].kind == kind)
			sum += m->memory.regions[i].len_bytes;
	return sum;
}

/* Pages that CRIU saved, those of processes without chunks and of what the driver saved into them too. */
static uint64_t criu_bytes(const struct manifest *m)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < m->n_files; i++)
		if (!strncmp(m->files[i].path, "criu/pages-", strlen("criu/pages-")))
			sum += m->files[i].len_bytes;
	return sum;
}

/* Memory by kind, and what it takes. */
static json_t *describe_memory(const struct store_image *i)
{
	auto_(usage_seen_fini) struct usage_seen seen = USAGE_SEEN_EMPTY;
	const struct manifest *m = &i->manifest;
	struct usage usage;

	if (usage_of(&usage, i, &seen) < 0)
		return NULL;
	return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "gpu_buffers_bytes",
			 (json_int_t)region_bytes(m, MANIFEST_REGION_DEVICE), "cpu_chunks_bytes",
			 (json_int_t)region_bytes(m, MANIFEST_REGION_HOST), "criu_pages_bytes",
			 (json_int_t)criu_bytes(m), "zero_bytes", (json_int_t)m->memory.zero_bytes,
			 "disk_bytes", (json_int_t)usage.disk_bytes, "shared_bytes",
			 (json_int_t)usage.shared_bytes);
}

static int inspect_checkpoint(const struct service_call *call, const char *dir, const char *word,
			      json_t **ret, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, call, dir, word, err);
	if (r < 0)
		return r;

	json_t *reply = json_pack("{s:o,s:s,s:o}", "manifest", manifest_to_json(&image.manifest),
				  "path", image.path, "stored", describe_memory(&image));
	if (!reply)
		return brumate_fail(err, ENOMEM, "%m");
	*ret = reply;
	return 0;
}

int service_inspect(const struct service_call *call, json_t *parameters, json_t **ret,
		    struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct meaning_question q = { .call = call };
	auto_free char *dir = NULL;
	int r = wire_need_string(parameters, "what", &q.word, err);

	if (r == 0)
		r = wire_get_string(parameters, "kind", &q.kind, err);
	if (r == 0)
		r = meaning_in_store(&q, parameters, &dir, err);
	if (r == 0)
		r = meaning_find(&j, &q, err);
	if (r < 0)
		return r;
	if (r == MEANS_JOB)
		return inspect_job(call, &j, ret, err);
	r = inspect_checkpoint(call, dir, q.word, ret, err);
	if (r == -ENOENT && !q.kind && !q.dir_given && !strchr(q.word, '/'))
		return meaning_fail_unknown(err, q.word);
	return r;
}
