// SPDX-License-Identifier: MIT
/* Verify and Diff: what checkpoints hold, without restoring any. */
#include "service/access.h"
#include "service/meter.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/paths.h"
#include "image/diff.h"
#include "chunks/chunks.h"

static const char *const kinds[] = {
	[STORE_MISSING] = "missing", [STORE_EXTRA] = "extra", [STORE_SIZE] = "size",
	[STORE_DIGEST] = "digest",   [STORE_OWNER] = "owner", [STORE_UNREADABLE] = "unreadable",
	[STORE_CHUNK] = "chunk",
};

static void problem_text(char *ret, size_t room, const struct store_problem *p)
{
	unsigned long long want = p->expected_bytes, have = p->actual_bytes;

	switch (p->kind) {
	case STORE_MISSING:
		snprintf(ret, room, "missing, want %llu bytes", want);
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
	/* Without memory one is lost from the list, but not from the count that decides. */
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

/* A checkpoint that cannot even be opened is as bad as one whose files are. */
static int add_unopened(json_t *results, const char *dir, const char *id, const char *why)
{
	auto_free char *path = strchr(id, '/') ? strdup(id) : path_format("%s/%s", dir, id);
	auto_json json_t *problems =
		json_pack("[{s:s,s:s,s:s,s:i,s:i,s:n,s:n}]", "kind", "manifest", "file",
			  MANIFEST_FILE_NAME, "text", why, "expected_bytes", 0, "actual_bytes", 0,
			  "expected_digest", "actual_digest");

	return path && problems ? add_result(results, id, path, NULL, 0, problems) : -1;
}

static int verify_one(json_t *results, struct meter *meter, const char *dir, const char *word,
		      struct brumate_error *err)
{
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	int r = access_image(&image, meter->call, dir, word, err);

	meter_step(meter);
	if (r == 0)
		return verify_image(results, meter, &image, err);
	/* Of a damaged one it cannot be told whose it is. */
	if (meter->call->uid != 0 || (r != -EBADMSG && r != -EPROTONOSUPPORT))
		return r;
	return add_unopened(results, dir, word, err->text) < 0 ? brumate_fail(err, ENOMEM, "%m")
							       : 0;
}

struct listing {
	const struct service_call *call;
	json_t *ids;
};

static void list_one(void *arg, const char *id, const struct store_image *i,
		     const struct brumate_error *why)
{
	struct listing *l = arg;

	if (l->call->uid == 0 || (i && i->manifest.job.uid == l->call->uid))
		json_array_append_new(l->ids, json_string(id));
}

/* What is to be verified: what is named, or all that are the caller's. Owned. */
static int choose(json_t **ret, const struct service_call *call, const char *dir,
		  json_t *parameters, struct brumate_error *err)
{
	json_t *given, *item;
	size_t i;
	int r = wire_get_array(parameters, "checkpoints", &given, err);

	if (r < 0)
		return r;
	json_array_foreach (given, i, item)
		if (!json_is_string(item))
			return wire_fail_parameter(err, "checkpoints", "want strings");
	if (given) {
		*ret = json_incref(given);
		return 0;
	}

	struct listing l = { call, json_array() };
	r = store_list(dir, list_one, &l, err);
	if (r < 0)
		json_decref(l.ids);
	else
		*ret = l.ids;
	return r;
}

int service_verify(const struct service_call *call, json_t *parameters, json_t **ret,
		   struct brumate_error *err)
{
	auto_json json_t *words = NULL, *results = json_array();
	auto_free char *dir = NULL;
	json_t *word;
	size_t i;
	int r = access_store(&dir, call, parameters, err);

	if (r == 0)
		r = choose(&words, call, dir, parameters, err);
	if (r < 0)
		return r;

	struct meter meter = meter_of(call, "verify", (int)json_array_size(words));
	json_array_foreach (words, i, word) {
		struct brumate_error why = BRUMATE_ERROR_NONE;

		r = verify_one(results, &meter, dir, json_string_value(word), &why);
		/* Removed since it was listed. */
		if (r == -ENOENT && !json_object_get(parameters, "checkpoints"))
			continue;
		if (r < 0) {
			*err = why;
			return r;
		}
	}
	*ret = json_pack("{s:O}", "results", results);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static json_t *side(const struct store_image *i)
{
	const struct manifest *m = &i->manifest;

	return json_pack("{s:s,s:s,s:s,s:o,s:o,s:I}", "id", m->id, "path", i->path, "created",
			 m->created, "job", wire_string(m->job.id), "job_name",
			 wire_string(m->job.name), "bytes", (json_int_t)manifest_bytes(m));
}

/* What differs, and how many chunks of memory do not. */
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
	auto_free char *dir = NULL;
	struct chunks_common common = { 0 };
	const char *a, *b;
	int r = wire_need_string(parameters, "from", &a, err);

	if (r == 0)
		r = wire_need_string(parameters, "to", &b, err);
	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r == 0)
		r = access_image(&from, call, dir, a, err);
	if (r == 0)
		r = access_image(&to, call, dir, b, err);
	if (r == 0)
		r = store_chunks_compare(&common, &from, &to, err);
	if (r < 0)
		return r;
	*ret = json_pack("{s:o,s:o,s:o}", "from", side(&from), "to", side(&to), "differences",
			 differences(&from, &to, &common));
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}
