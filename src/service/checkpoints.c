// SPDX-License-Identifier: MIT
/*
 * Methods about checkpoints in a store: Checkpoints and Inspect list them and their content, Verify and Diff check
 * and compare it, Prune removes by a rule, and Sweep removes what dead writers left. Shims are not involved, except
 * for the memory of jobs.
 */
#include "service/access.h"
#include "criu/images.h"
#include "engine/needs.h"
#include "base/escape.h"
#include "service/jobs.h"
#include "service/resolve.h"
#include "service/service.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/paths.h"
#include "chunks/chunks.h"
#include "engine/externals.h"
#include "image/manifest.h"
#include "store/source.h"
#include "store/store.h"

/* ---- what a restore would do, told from the manifest and CRIU's images ---- */

static int read_image(void *arg, const char *name, char **ret, size_t *ret_len_bytes,
		      struct brumate_error *err)
{
	return store_read_image(ret, ret_len_bytes, arg, name, CRIU_IMAGE_BYTES_MAX, err);
}

static json_t *escaped(const char *text)
{
	auto_free char *safe = text ? text_escape(text, SIZE_MAX) : NULL;

	return safe ? json_string(safe) : NULL;
}

/* Descriptors that lead outside the job, and their replacements. */
static json_t *replaced(const struct manifest *m)
{
	json_t *all = json_array();

	for (size_t i = 0; i < m->n_externals; i++)
		json_array_append_new(all,
				      json_pack("{s:o,s:o}", "was", escaped(m->externals[i].key),
						"becomes", escaped(m->externals[i].become)));
	return all;
}

static json_t *gpus(const struct manifest *m)
{
	json_t *all = json_array();

	for (size_t i = 0; i < m->n_gpus; i++)
		json_array_append_new(all,
				      json_pack("{s:o,s:o,s:I}", "uuid", escaped(m->gpus[i].uuid),
						"name", escaped(m->gpus[i].name), "used_bytes",
						(json_int_t)m->gpus[i].used_bytes));
	return all;
}

/* Whether a restore would accept its origin, and if not, why. */
static json_t *doubt(const struct store_image *image, const struct authority *authority)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	return authentic_check_image(image, authority, &why) < 0 ? escaped(why.text) : NULL;
}

static json_t *tell_ours(const struct store_image *image, const struct authority *authority)
{
	const struct manifest *m = &image->manifest;

	return json_pack("{s:o*,s:I,s:I,s:o*,s:o,s:o}", "doubt", doubt(image, authority), "uid",
			 (json_int_t)m->job.uid, "gid", (json_int_t)m->job.gid, "log",
			 escaped(m->job.log), "replaced", replaced(m), "gpus", gpus(m));
}

/* Describes what a restore of @image would do, without doing it. @authority: the proof of origin that is needed; its
 * key decrypts the image.
 * @ret (owned): Foretold of io.brumate. -EBADMSG: an image is damaged; -ENOKEY, -EKEYREJECTED, -E2BIG. */
static int foretell_restore(json_t **ret, struct store_image *image,
			    const struct authority *authority, struct brumate_error *err)
{
	json_t *contents = NULL;
	int r = store_unlock(image, authority->has_key ? &authority->key : NULL, err);

	if (r < 0)
		return r;
	r = criu_contents_read(&contents, read_image, image, err);
	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", image->manifest.id);
	json_t *all = tell_ours(image, authority);
	r = all && json_object_update(all, contents) == 0 ? 0 : brumate_fail(err, ENOMEM, "%m");
	json_decref(contents);
	if (r < 0)
		json_decref(all);
	else
		*ret = all;
	return r;
}

/* ---- Checkpoints and Inspect ---- */

struct listing {
	const struct service_call *call;
	const char *dir;
	json_t *checkpoints;
	struct usage_seen seen;
	bool failed;
};

static json_t *describe_checkpoint(const struct store_image *i, struct usage_seen *seen)
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

/* Adds nothing if it is unknown whether the checkpoint is pinned. */
static int add_pinned(json_t *o, const char *dir, const char *id)
{
	int r = store_pinned(dir, id, NULL);

	return r < 0 ? 0 : json_object_set_new(o, "pinned", json_boolean(r));
}

static json_t *describe_damaged(const char *dir, const char *id, const struct brumate_error *why)
{
	auto_free char *path = path_format("%s/%s", dir, id);

	if (!path)
		return NULL;
	return json_pack("{s:s,s:s,s:i,s:i,s:i,s:b,s:s}", "id", id, "path", path, "bytes", 0,
			 "gpus", 0, "processes", 0, "simulated", 0, "error", why->text);
}

static void list_checkpoint(void *arg, const char *id, const struct store_image *i,
			    const struct brumate_error *why)
{
	struct listing *l = arg;
	auto_json json_t *o =
		i ? describe_checkpoint(i, &l->seen) : describe_damaged(l->dir, id, why);
	if (add_pinned(o, l->dir, id) < 0 || json_array_append(l->checkpoints, o) < 0)
		l->failed = true;
}

int service_checkpoints(const struct service_call *call, json_t *parameters, json_t **ret,
			struct brumate_error *err)
{
	auto_json json_t *checkpoints = json_array();
	auto_free char *dir = NULL;
	int r = access_store_there(&dir, parameters, err);

	if (r < 0)
		return r;

	struct listing l = { .dir = dir, .checkpoints = checkpoints };
	r = store_list(dir, list_checkpoint, &l, err);
	usage_seen_fini(&l.seen);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:o,s:O}", "dir", wire_string(dir), "checkpoints",
			      l.failed ? NULL : checkpoints);
}

/* The checkpoints in a store that are of one job. */
struct own_listing {
	struct listing all;
	const char *job;
};

static void list_own_checkpoint(void *arg, const char *id, const struct store_image *i,
				const struct brumate_error *why)
{
	struct own_listing *l = arg;

	if (i && !strcmp(i->manifest.job.id, l->job))
		list_checkpoint(&l->all, id, i, why);
}

/* The checkpoints of the job @j (owned), NULL if the store cannot be read. */
static json_t *own_checkpoints(const struct job *j, const char *dir)
{
	auto_json json_t *list = json_array();
	struct own_listing l = { .all = { .dir = dir, .checkpoints = list }, .job = j->id };
	int r = list ? store_list(dir, list_own_checkpoint, &l, NULL) : -ENOMEM;

	usage_seen_fini(&l.all.seen);
	return r < 0 || l.all.failed ? NULL : take_ptr(&list);
}

enum { FORESEE_MS = 2000 };

/* Adds what @method (asked with @request, taken) would come to, or why it would be refused. */
static void foresee(json_t *list, const struct service_call *call, const struct job *j,
		    const char *method, const char *operation, json_t *request)
{
	auto_json json_t *owned = request, *reply = NULL;
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!owned)
		return;
	if (shim_relay(call, j, method, owned, &reply, &why) == 0)
		json_array_append(list, json_object_get(reply, "foreseen"));
	else if (why.code != EBUSY && why.code != ETIMEDOUT)
		json_array_append_new(list,
				      json_pack("{s:s,s:s,s:o}", "operation", operation, "job",
						j->id, "error", wire_string(why.text)));
}

/* Owned; NULL of a job that does not run, as what stands still is saved already. */
static json_t *foreseen_of(const struct service_call *call, const struct job *j, const char *dir)
{
	char id[MANIFEST_ID_BYTES];
	auto_json json_t *list = j->state == JOB_RUNNING ? json_array() : NULL;

	if (!list)
		return NULL;
	store_new_id(id, dir, j->name);
	foresee(list, call, j, "Suspend", "suspend",
		json_pack("{s:b,s:i}", "dry_run", 1, "timeout_ms", FORESEE_MS));
	foresee(list, call, j, "Checkpoint", "checkpoint",
		json_pack("{s:b,s:i,s:b,s:s,s:s}", "dry_run", 1, "timeout_ms", FORESEE_MS,
			  "unnamed", 1, "id", id, "dir", dir));
	return take_ptr(&list);
}

static int inspect_job(const struct service_call *call, const struct job *j, const char *dir,
		       json_t **ret, struct brumate_error *err)
{
	auto_json json_t *asked = NULL;

	if (j->data_path == JOB_DATA_BROKER && !job_has_ended(j))
		shim_relay(call, j, "Memory", NULL, &asked, NULL);
	return service_answer(ret, err, "{s:o,s:o*,s:O*,s:o*,s:o*,s:o*,s:o*}", "job",
			      describe_job(j), "last", job_last_summary(j), "memory",
			      json_object_get(asked, "processes"), "processes",
			      observe_processes(j), "files", observe_files(j), "checkpoints",
			      own_checkpoints(j, dir), "foreseen", foreseen_of(call, j, dir));
}

/* The memory in a checkpoint by kind, and its size on disk. CRIU has pages of processes without chunks, and what the driver saved
 * into processes. */
static json_t *describe_memory(const struct store_image *i)
{
	auto_(usage_seen_fini) struct usage_seen seen = USAGE_SEEN_EMPTY;
	const struct manifest *m = &i->manifest;
	struct usage usage;

	if (usage_of(&usage, i, &seen) < 0)
		return NULL;
	return json_pack(
		"{s:I,s:I,s:I,s:I,s:I,s:I}", "gpu_buffers_bytes",
		(json_int_t)manifest_region_bytes(m, MANIFEST_REGION_DEVICE), "cpu_chunks_bytes",
		(json_int_t)manifest_region_bytes(m, MANIFEST_REGION_HOST), "criu_pages_bytes",
		(json_int_t)manifest_files_bytes(m, "criu/pages-"), "zero_bytes",
		(json_int_t)m->memory.zero_bytes, "disk_bytes", (json_int_t)usage.disk_bytes,
		"shared_bytes", (json_int_t)usage.shared_bytes);
}

static int inspect_restore(struct store_image *image, json_t *parameters, json_t **ret,
			   struct brumate_error *err)
{
	auto_(authority_fini) struct authority authority = AUTHORITY_EMPTY;
	auto_json json_t *foretold = NULL;
	int r = access_authority(&authority, parameters, err);

	if (r == 0)
		r = foretell_restore(&foretold, image, &authority, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:s,s:O}", "path", image->path, "restore", foretold);
}

static int inspect_needs(struct store_image *image, json_t *parameters, json_t **ret,
			 struct brumate_error *err)
{
	auto_(authority_fini) struct authority authority = AUTHORITY_EMPTY;
	auto_json json_t *needs = NULL;
	int r = access_authority(&authority, parameters, err);

	if (r == 0)
		r = store_unlock(image, authority.has_key ? &authority.key : NULL, err);
	if (r == 0)
		r = needs_find(&needs, &image->manifest, read_image, image, err);
	if (r < 0)
		return brumate_wrap(err, r, "checkpoint %s", image->manifest.id);
	return service_answer(ret, err, "{s:s,s:O}", "path", image->path, "needs", needs);
}

static int add_pinned_of(json_t *o, const struct store_image *image)
{
	auto_free char *store = strdup(image->path);
	char *slash = store ? strrchr(store, '/') : NULL;

	if (!slash)
		return store ? 0 : -ENOMEM;
	*slash = '\0';
	return add_pinned(o, store, image->manifest.id);
}

static int inspect_checkpoint(const char *dir, const char *word, json_t *parameters, json_t **ret,
			      struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	bool of_restore = false, of_needs = false;
	int r = wire_get_bool(parameters, "restore", &of_restore, err);

	if (r == 0)
		r = wire_get_bool(parameters, "needs", &of_needs, err);
	if (r == 0)
		r = access_image(&image, dir, word, err);
	if (r < 0)
		return r;
	if (of_restore)
		return inspect_restore(&image, parameters, ret, err);
	if (of_needs)
		return inspect_needs(&image, parameters, ret, err);

	json_t *reply = json_pack("{s:o,s:s,s:o}", "manifest", manifest_to_json(&image.manifest),
				  "path", image.path, "stored", describe_memory(&image));
	if (!reply || add_pinned_of(reply, &image) < 0) {
		json_decref(reply);
		return brumate_fail(err, ENOMEM, "%m");
	}
	*ret = reply;
	return 0;
}

int service_inspect(const struct service_call *call, json_t *parameters, json_t **ret,
		    struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct resolve_question q = { .call = call };
	auto_free char *dir = NULL;
	int r = wire_need_string(parameters, "what", &q.word, err);

	if (r == 0)
		r = wire_get_string(parameters, "kind", &q.kind, err);
	if (r == 0)
		r = resolve_in_store(&q, parameters, &dir, err);
	if (r == 0)
		r = resolve_word(&j, &q, err);
	if (r < 0)
		return r;
	if (r == MEANS_JOB)
		return inspect_job(call, &j, dir, ret, err);
	r = inspect_checkpoint(dir, q.word, parameters, ret, err);
	if (r == -ENOENT && !q.kind && !q.dir_given && !strchr(q.word, '/'))
		return resolve_fail_unknown(err, &q);
	return r;
}

/* ---- Verify and Diff ---- */

static const char *const kinds[] = {
	[STORE_MISSING] = "missing", [STORE_EXTRA] = "extra", [STORE_SIZE] = "size",
	[STORE_DIGEST] = "digest",   [STORE_OWNER] = "owner", [STORE_UNREADABLE] = "unreadable",
	[STORE_FAILED] = "failed",   [STORE_CHUNK] = "chunk",
};

static void problem_text(char *ret, size_t room, const struct store_problem *p)
{
	unsigned long long want = p->expected_bytes, have = p->actual_bytes;

	switch (p->kind) {
	case STORE_MISSING:
		snprintf(ret, room, "missing, expected %llu bytes", want);
		return;
	case STORE_EXTRA:
		snprintf(ret, room, "not in the manifest");
		return;
	case STORE_SIZE:
		snprintf(ret, room, "%s: %llu of %llu bytes",
			 have < want ? "truncated" : "too long", have, want);
		return;
	case STORE_DIGEST:
		snprintf(ret, room, "damaged: its digest does not match");
		return;
	case STORE_OWNER:
		snprintf(ret, room, "belongs to another user, or others may write to it");
		return;
	case STORE_FAILED:
	case STORE_UNREADABLE:
		snprintf(ret, room, "%s",
			 p->failure == -EBADMSG ? "no regular file" : strerror(-p->failure));
		return;
	case STORE_CHUNK:
		snprintf(ret, room, "%s", p->text);
		return;
	}
}

static json_t *digest_or_null(const struct digest *d)
{
	static const struct digest none;
	char text[DIGEST_TEXT_BYTES];

	if (!memcmp(d, &none, sizeof(none)))
		return json_null();
	digest_format(text, d);
	return json_string(text);
}

static void add_problem(void *arg, const struct store_problem *p)
{
	char text[1024];

	problem_text(text, sizeof(text), p);
	/* Out of memory, a problem is missing in the list, but still counts. */
	json_array_append_new(arg, json_pack("{s:s,s:o,s:s,s:I,s:I,s:o,s:o}", "kind",
					     kinds[p->kind], "file", wire_string(p->path), "text",
					     text, "expected_bytes", (json_int_t)p->expected_bytes,
					     "actual_bytes", (json_int_t)p->actual_bytes,
					     "expected_digest", digest_or_null(&p->expected),
					     "actual_digest", digest_or_null(&p->actual)));
}

static int add_result(json_t *results, const char *id, const char *path, const struct manifest *m,
		      double seconds, json_t *problems)
{
	return json_array_append_new(results,
				     json_pack("{s:s,s:s,s:b,s:I,s:I,s:f,s:O}", "id", id, "path",
					       path, "ok", json_array_size(problems) == 0, "files",
					       (json_int_t)(m ? m->n_files + m->memory.n_packs : 0),
					       "bytes", (json_int_t)(m ? manifest_bytes(m) : 0),
					       "seconds", seconds, "problems", problems));
}

static int verify_image(json_t *results, struct meter *meter, const struct store_image *image,
			struct brumate_error *err)
{
	auto_json json_t *problems = json_array();
	uint64_t start_ns = clock_now_ns();
	int r = store_verify_all(image, add_problem, problems, meter_progress, meter, err);

	if (r < 0)
		return r;
	if (add_result(results, image->manifest.id, image->path, &image->manifest,
		       clock_since_s(start_ns), problems) < 0 ||
	    (size_t)r != json_array_size(problems))
		return brumate_fail(err, ENOMEM, "%m");
	return 0;
}

/* Adds a checkpoint whose manifest is refused, as one with damaged files. */
static int add_refused(json_t *results, const char *id, const char *path, const char *why)
{
	auto_json json_t *problems =
		json_pack("[{s:s,s:s,s:s,s:i,s:i,s:n,s:n}]", "kind", "manifest", "file",
			  MANIFEST_FILE_NAME, "text", why, "expected_bytes", 0, "actual_bytes", 0,
			  "expected_digest", "actual_digest");

	return problems ? add_result(results, id, path, NULL, 0, problems) : -1;
}

static int add_unopened(json_t *results, const char *dir, const char *id, const char *why)
{
	auto_free char *path = strchr(id, '/') ? strdup(id) : path_format("%s/%s", dir, id);

	return path ? add_refused(results, id, path, why) : -1;
}

/* If its origin is not accepted, its files need not be read. */
static int verify_authentic(json_t *results, struct meter *meter, const struct store_image *image,
			    const struct authority *authority, struct brumate_error *err)
{
	int r = authentic_check_image(image, authority, err);

	if (r == 0)
		return verify_image(results, meter, image, err);
	if (r != -EKEYREJECTED && r != -EBADMSG)
		return r;
	return add_refused(results, image->manifest.id, image->path, err->text) < 0
		       ? brumate_fail(err, ENOMEM, "%m")
		       : 0;
}

static int verify_one(json_t *results, struct meter *meter, const char *dir, const char *word,
		      const struct authority *authority, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, dir, word, err);

	meter_step(meter);
	if (r == 0)
		return verify_authentic(results, meter, &image, authority, err);
	if (r != -EBADMSG && r != -EPROTONOSUPPORT)
		return r;
	return add_unopened(results, dir, word, err->text) < 0 ? brumate_fail(err, ENOMEM, "%m")
							       : 0;
}

static void list_verified(void *arg, const char *id, const struct store_image *i,
			  const struct brumate_error *why)
{
	json_array_append_new(arg, json_string(id));
}

/* Chooses the checkpoints to be verified: those that are named, or all. @ret: owned. */
static int choose_checkpoints(json_t **ret, const char *dir, json_t *parameters,
			      struct brumate_error *err)
{
	json_t *given, *item;
	size_t i;
	int r = wire_get_array(parameters, "checkpoints", &given, err);

	if (r < 0)
		return r;
	json_array_foreach (given, i, item)
		if (!json_is_string(item))
			return wire_fail_parameter(err, "checkpoints", "expected strings");
	if (given) {
		*ret = json_incref(given);
		return 0;
	}

	auto_json json_t *ids = json_array();
	r = store_list(dir, list_verified, ids, err);
	if (r == 0)
		*ret = json_incref(ids);
	return r;
}

int service_verify(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_json json_t *words = NULL, *results = json_array();
	auto_(authority_fini) struct authority authority = AUTHORITY_EMPTY;
	auto_free char *dir = NULL;
	json_t *word;
	size_t i;
	int r = access_store_there(&dir, parameters, err);

	if (r == 0)
		r = access_authority(&authority, parameters, err);
	if (r == 0)
		r = choose_checkpoints(&words, dir, parameters, err);
	if (r < 0)
		return r;

	struct meter meter = meter_of(call, "verify", (int)json_array_size(words));
	json_array_foreach (words, i, word) {
		struct brumate_error why = BRUMATE_ERROR_NONE;

		r = verify_one(results, &meter, dir, json_string_value(word), &authority, &why);
		/* It was removed after it was listed. */
		if (r == -ENOENT && !json_object_get(parameters, "checkpoints"))
			continue;
		if (r < 0) {
			*err = why;
			return r;
		}
	}
	return service_answer(ret, err, "{s:O}", "results", results);
}

static json_t *side_to_json(const struct store_image *i)
{
	const struct manifest *m = &i->manifest;

	return json_pack("{s:s,s:s,s:s,s:o,s:o,s:I}", "id", m->id, "path", i->path, "created",
			 m->created, "job", wire_string(m->job.id), "job_name",
			 wire_string(m->job.name), "bytes", (json_int_t)manifest_bytes(m));
}

/* Describes the differences, and how many chunks of memory are the same. */
static json_t *differences(const struct store_image *from, const struct store_image *to,
			   const struct chunks_common *common)
{
	json_t *diff = manifest_diff(&from->manifest, &to->manifest);

	if (!diff ||
	    json_object_set_new(diff, "chunks", json_integer((json_int_t)common->chunks)) ||
	    json_object_set_new(diff, "same_chunks",
				json_integer((json_int_t)common->same_chunks)) ||
	    json_object_set_new(diff, "same_chunk_bytes",
				json_integer((json_int_t)common->same_bytes))) {
		json_decref(diff);
		return NULL;
	}
	return diff;
}

int service_diff(const struct service_call *call, json_t *parameters, json_t **ret,
		 struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image from = STORE_IMAGE_EMPTY;
	auto_(store_image_fini) struct store_image to = STORE_IMAGE_EMPTY;
	auto_(authority_fini) struct authority authority = AUTHORITY_EMPTY;
	auto_free char *dir = NULL;
	struct chunks_common common = { 0 };
	const char *a, *b;
	int r = wire_need_string(parameters, "from", &a, err);

	if (r == 0)
		r = wire_need_string(parameters, "to", &b, err);
	if (r == 0)
		r = access_store_there(&dir, parameters, err);
	if (r == 0)
		r = access_image(&from, dir, a, err);
	if (r == 0)
		r = access_image(&to, dir, b, err);
	if (r == 0)
		r = access_authority(&authority, parameters, err);
	if (r == 0)
		r = authentic_check_image(&from, &authority, err);
	if (r == 0)
		r = authentic_check_image(&to, &authority, err);
	if (r == 0)
		r = store_chunks_compare(&common, &from, &to, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:o,s:o,s:o}", "from", side_to_json(&from), "to",
			      side_to_json(&to), "differences", differences(&from, &to, &common));
}

/* ---- Pin, Unpin, Prune and Sweep ---- */

/* Finds the id (in @ret, owned) of the checkpoint for @word. A damaged one is only found by its full id. */
static int get_checkpoint(char **ret, const char *dir, const char *word, struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;

	if (strchr(word, '/'))
		return brumate_fail(err, EINVAL, "%s: expected an id; say where it is with --dir",
				    word);
	int r = access_image(&image, dir, word, err);
	if (r < 0 && r != -EBADMSG && r != -EPROTONOSUPPORT)
		return r;
	*ret = strdup(r < 0 ? word : image.manifest.id);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

/* Pins or unpins by @change. Unpinning requires the full id: the name of a job may mean another checkpoint at another
 * time, and an unpinned one may be removed. */
static int change_pin(int (*change)(const char *dir, const char *id, struct brumate_error *err),
		      json_t *parameters, json_t **ret, struct brumate_error *err)
{
	auto_free char *dir = NULL, *id = NULL;
	const char *word;
	int r = wire_need_string(parameters, "checkpoint", &word, err);

	if (r == 0)
		r = access_store_there(&dir, parameters, err);
	if (r == 0)
		r = get_checkpoint(&id, dir, word, err);
	if (r == 0 && change == store_unpin && strcmp(id, word)) {
		brumate_fail(err, EINVAL, "%s: expected the whole id of a checkpoint", word);
		brumate_hint(err, "did you mean %s?", id);
		return -EINVAL;
	}
	if (r == 0)
		r = change(dir, id, err);
	return r < 0 ? r : service_answer(ret, err, "{s:s}", "checkpoint", id);
}

int service_pin(const struct service_call *call, json_t *parameters, json_t **ret,
		struct brumate_error *err)
{
	return change_pin(store_pin, parameters, ret, err);
}

int service_unpin(const struct service_call *call, json_t *parameters, json_t **ret,
		  struct brumate_error *err)
{
	return change_pin(store_unpin, parameters, ret, err);
}

/* The rule of Prune. */

struct pruning {
	const char *dir;
	json_t *removed, *kept, *damaged;
	json_t *needed; /* {id: why} */
};

/* Searches for a job, or a checkpoint of one, with that id or name. */
struct job_search {
	const char *word;
	bool found;
};

static void look_for_checkpoint(void *arg, const char *id, const struct store_image *i,
				const struct brumate_error *why)
{
	struct job_search *s = arg;

	if (i && (!strcmp(i->manifest.job.id, s->word) || !strcmp(i->manifest.job.name, s->word)))
		s->found = true;
}

/* A rule for a job that never existed is probably a mistake, and must not look as if it had found nothing to remove. */
static int check_pruned_job(const char *dir, const char *word, struct brumate_error *err)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	struct job_search s = { .word = word };
	int r = store_list(dir, look_for_checkpoint, &s, err);

	return r < 0 || s.found ? r : resolve_job_exactly(&j, word, err);
}

static const char *needed_for(void *arg, const char *id)
{
	const struct pruning *p = arg;

	return json_string_value(json_object_get(p->needed, id));
}

static void tell_pruned(void *arg, enum store_pruned what, const char *id, const char *why)
{
	struct pruning *p = arg;

	if (what == STORE_PRUNE_REMOVED)
		json_array_append_new(p->removed, json_string(id));
	else
		json_array_append_new(what == STORE_PRUNE_KEPT ? p->kept : p->damaged,
				      json_pack("{s:s,s:o}", "id", id, "text", wire_string(why)));
}

/* Notes the checkpoint that the record of a job names: it must stay. */
static void note_needed(void *arg, const struct job *j, const char *id,
			const struct brumate_error *why)
{
	struct pruning *p = arg;
	char text[192];

	if (!j || !j->checkpoint)
		return;
	auto_free char *path = path_format("%s/%s", p->dir, j->checkpoint);
	if (path && !job_names_checkpoint(j, path))
		return;
	if (!job_has_ended(j) || j->state == JOB_EXITED)
		snprintf(text, sizeof(text), "job %s (%s) would be restored from it", j->id,
			 j->name);
	else
		snprintf(text, sizeof(text),
			 "job %s (%s) is nowhere else; `brumate rm %s` forgets it", j->id, j->name,
			 j->id);
	json_object_set_new(p->needed, j->checkpoint, json_string(text));
}

static int get_prune_rule(struct store_prune *ret, json_t *parameters, struct brumate_error *err)
{
	int64_t last = 0, within_ms = 0;
	int r = wire_get_string(parameters, "job", &ret->job, err);

	if (r == 0)
		r = wire_get_int(parameters, "keep_last", 1, UINT_MAX, &last, err);
	if (r == 0)
		r = wire_get_int(parameters, "keep_within_ms", 1, INT64_MAX, &within_ms, err);
	if (r == 0)
		r = wire_get_bool(parameters, "dry_run", &ret->dry_run, err);
	if (r < 0)
		return r;
	if (!last && !within_ms)
		return wire_fail_parameter(err, "keep_last", "expected this or keep_within_ms");
	ret->rule = (struct retention_rule){ (unsigned)last, (uint64_t)within_ms };
	return 0;
}

int service_prune(const struct service_call *call, json_t *parameters, json_t **ret,
		  struct brumate_error *err)
{
	auto_json json_t *removed = json_array(), *kept = json_array(), *damaged = json_array(),
			 *needed = json_object();
	struct pruning p = { NULL, removed, kept, damaged, needed };
	struct store_prune prune = { .needed = needed_for, .tell = tell_pruned, .arg = &p };
	auto_free char *dir = NULL;
	int r = get_prune_rule(&prune, parameters, err);

	if (r == 0)
		r = access_store_there(&dir, parameters, err);
	p.dir = dir;
	if (r == 0 && prune.job)
		r = check_pruned_job(dir, prune.job, err);
	if (r == 0)
		r = job_list(note_needed, &p, err);
	if (r == 0)
		r = store_prune(dir, &prune, err);
	if (r < 0)
		return r;
	return service_answer(ret, err, "{s:O,s:O,s:O}", "removed", removed, "kept", kept,
			      "damaged", damaged);
}

int service_sweep(const struct service_call *call, json_t *parameters, json_t **ret,
		  struct brumate_error *err)
{
	auto_free char *dir = NULL;
	int r = access_store_there(&dir, parameters, err);

	if (r < 0)
		return r;
	int n = store_sweep(dir);
	if (n < 0)
		return brumate_fail(err, -n, "%s: %m", dir);
	n += source_sweep(dir);
	n += end_abandoned_jobs(call);
	n += programs_sweep();
	return service_answer(ret, err, "{s:i}", "swept", n);
}
