// SPDX-License-Identifier: MIT
/*
 * Push, Pull, RemoteCheckpoints and RemoteRemove: checkpoints in an object store. Where it is and as
 * whom comes with every call: a daemon has no credentials of its own to lend.
 */
#include "service/remote.h"
#include "service/access.h"
#include "service/meter.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"
#include "base/paths.h"

void remote_given_fini(struct remote_given *g)
{
	remote_config_fini(&g->config);
	remote_place_fini(&g->place);
}
int remote_given_get(struct remote_given *g, json_t *parameters, struct brumate_error *err)
{
	json_t *remote;
	int r = wire_need_string(parameters, "url", &g->url, err);

	if (r == 0)
		r = wire_get_object(parameters, "remote", &remote, err);
	if (r == 0 && !remote)
		r = wire_fail_parameter(err, "remote", "is missing");
	if (r == 0)
		r = remote_place_parse(&g->place, g->url, err);
	return r < 0 ? r : remote_config_from_json(&g->config, remote, err);
}

char *remote_url_of(const struct remote_place *p, const char *id)
{
	return path_format("s3://%s/%s%s%s", p->bucket, p->prefix, *p->prefix ? "/" : "", id);
}

static json_t *moved(const char *id, const char *url, const char *dir, const struct remote_sums *s,
		     uint64_t start_ns)
{
	return json_pack("{s:s,s:s?,s:s*,s:I,s:I,s:I,s:I,s:f}", "checkpoint", id, "url", url, "dir",
			 dir, "files", (json_int_t)s->files, "bytes", (json_int_t)s->bytes,
			 "moved_files", (json_int_t)s->moved_files, "moved_bytes",
			 (json_int_t)s->moved_bytes, "seconds", clock_since_s(start_ns));
}

/* For root alone, as Export. */
int service_push(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(remote_given_fini) struct remote_given g = REMOTE_GIVEN_EMPTY;
	struct meter meter = meter_of(call, "push", 1);
	uint64_t start_ns = clock_now_ns();
	struct remote_sums sums;
	auto_free char *dir = NULL;
	const char *word;
	int r = access_root(call, "push a checkpoint", err);

	if (r == 0)
		r = remote_given_get(&g, parameters, err);
	if (r == 0)
		r = wire_need_string(parameters, "checkpoint", &word, err);
	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r == 0)
		r = access_image(&image, call, dir, word, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = remote_push(&g.config, &g.place, &image, &sums, meter_progress, &meter, err);
	if (r < 0)
		return r;
	auto_free char *url = remote_url_of(&g.place, image.manifest.id);
	*ret = moved(image.manifest.id, url, NULL, &sums, start_ns);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* For root alone, as Import. */
int service_pull(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(remote_given_fini) struct remote_given g = REMOTE_GIVEN_EMPTY;
	struct meter meter = meter_of(call, "pull", 1);
	uint64_t start_ns = clock_now_ns();
	struct remote_sums sums;
	char id[MANIFEST_ID_BYTES];
	auto_free char *dir = NULL, *word = NULL;
	int r = access_root(call, "pull a checkpoint", err);

	if (r == 0)
		r = remote_given_get(&g, parameters, err);
	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r == 0)
		r = remote_place_split(&g.place, &word, err);
	if (r < 0)
		return r;

	meter_step(&meter);
	r = remote_pull(&g.config, &g.place, word, dir, id, &sums, meter_progress, &meter, err);
	if (r < 0)
		return r;
	auto_free char *url = remote_url_of(&g.place, id);
	*ret = moved(id, url, dir, &sums, start_ns);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

struct listing {
	const struct remote_place *place;
	json_t *checkpoints;
	bool failed;
};

static void list_one(void *arg, const char *id, const struct manifest *m,
		     const struct brumate_error *why)
{
	struct listing *l = arg;
	auto_free char *url = remote_url_of(l->place, id);
	json_t *o;

	if (m)
		o = json_pack("{s:s,s:s?,s:s,s:o,s:s,s:I,s:I,s:I,s:b}", "id", id, "path", url,
			      "job", m->job.id, "job_name", wire_string(m->job.name), "created",
			      m->created, "bytes", (json_int_t)manifest_bytes(m), "gpus",
			      (json_int_t)m->n_gpus, "processes", (json_int_t)m->n_processes,
			      "simulated", m->job.simulated);
	else
		o = json_pack("{s:s,s:s?,s:i,s:i,s:i,s:b,s:o}", "id", id, "path", url, "bytes", 0,
			      "gpus", 0, "processes", 0, "simulated", 0, "error",
			      wire_string(why->text));
	if (json_array_append_new(l->checkpoints, o) < 0)
		l->failed = true;
}

int service_remote_checkpoints(const struct service_call *call, json_t *parameters, json_t **ret,
			       struct brumate_error *err)
{
	auto_(remote_given_fini) struct remote_given g = REMOTE_GIVEN_EMPTY;
	auto_json json_t *checkpoints = json_array();
	struct meter meter = meter_of(call, "list", 1);
	struct listing l = { .place = &g.place, .checkpoints = checkpoints };
	int r = remote_given_get(&g, parameters, err);

	if (r < 0)
		return r;
	meter_step(&meter);
	r = remote_list(&g.config, &g.place, list_one, &l, meter_progress, &meter, err);
	if (r < 0)
		return r;
	*ret = l.failed ? NULL : json_pack("{s:O}", "checkpoints", checkpoints);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

int service_remote_remove(const struct service_call *call, json_t *parameters, json_t **ret,
			  struct brumate_error *err)
{
	auto_(remote_given_fini) struct remote_given g = REMOTE_GIVEN_EMPTY;
	struct meter meter = meter_of(call, "remove", 1);
	auto_free char *word = NULL;
	int r = remote_given_get(&g, parameters, err);

	if (r == 0)
		r = remote_place_split(&g.place, &word, err);
	if (r < 0)
		return r;
	meter_step(&meter);
	r = remote_remove(&g.config, &g.place, word, meter_progress, &meter, err);
	if (r < 0)
		return r;
	*ret = json_object();
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}
