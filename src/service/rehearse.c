// SPDX-License-Identifier: MIT
/* Rehearse: a checkpoint is restored apart from this machine, compared, and thrown away (engine/rehearse.h). */
#include "service/access.h"
#include "service/service.h"

#include <string.h>

#include "base/paths.h"
#include "engine/rehearse.h"
#include "job/request.h"

static void show(void *arg, const struct progress_sample *sample)
{
	const struct service_call *call = arg;
	auto_json json_t *reply =
		call->on_reply ? json_pack("{s:o}", "progress", op_progress_to_json(sample)) : NULL;

	if (reply)
		call->on_reply(call->arg, reply);
}

static bool is_cancelled(void *arg)
{
	return call_is_cancelled(arg);
}

/* Whose processes they would be. There is no such job here. */
static int take_job(struct job *ret, const struct manifest *m, struct brumate_error *err)
{
	if (!job_id_is_valid(m->job.id))
		return brumate_fail(err, EBADMSG, "checkpoint %s: \"%s\" is no id of a job", m->id,
				    m->job.id);
	snprintf(ret->id, sizeof(ret->id), "%s", m->job.id);
	ret->uid = geteuid() == 0 ? m->job.uid : geteuid();
	ret->gid = geteuid() == 0 ? m->job.gid : getegid();
	ret->simulated = m->job.simulated;
	snprintf(ret->vendor, sizeof(ret->vendor), "%s", m->job.gpu_vendor);
	ret->dir = strdup(path_runtime_dir()); /* for what has no name soon */
	return ret->dir ? 0 : brumate_fail(err, ENOMEM, "%m");
}

static json_t *notes_of(const struct op *op)
{
	json_t *notes = json_array();

	for (size_t i = 0; i < op->progress.n_notes; i++)
		json_array_append_new(notes, json_string(op->progress.notes[i]));
	return notes;
}

static int answer(json_t **ret, const struct op *op, const struct rehearsal *done,
		  struct brumate_error *err)
{
	const struct store_image *image = &op->restore.image;
	const struct criu_compared *c = &done->compared;

	return service_answer(ret, err, "{s:{s:s,s:s,s:f,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o}}",
			      "rehearsal", "id", image->manifest.id, "path", image->path, "seconds",
			      done->seconds, "processes", (json_int_t)c->processes, "threads",
			      (json_int_t)c->threads, "mappings", (json_int_t)c->mappings,
			      "descriptors", (json_int_t)c->descriptors, "timers",
			      (json_int_t)c->timers, "memory_bytes", (json_int_t)done->memory_bytes,
			      "filled_bytes", (json_int_t)done->filled_bytes, "page_bytes",
			      (json_int_t)c->page_bytes, "notes", notes_of(op));
}

static int decode_request(struct request *ret, json_t *parameters, struct brumate_error *err)
{
	auto_json json_t *picked = request_pick(parameters, REQUEST_REHEARSE);
	int r = picked ? request_add_defaults(picked, REQUEST_REHEARSE, err)
		       : brumate_fail(err, ENOMEM, "%m");

	return r < 0 ? r : request_decode(ret, REQUEST_REHEARSE, picked, err);
}

int service_rehearse(const struct service_call *call, json_t *parameters, json_t **ret,
		     struct brumate_error *err)
{
	const struct progress_caller caller = { (void *)call, show, is_cancelled, NULL };
	auto_(store_image_fini) struct store_image image = STORE_IMAGE_EMPTY;
	auto_(request_fini) struct request request = { 0 };
	auto_(job_fini) struct job job = JOB_EMPTY;
	auto_(op_fini) struct op op = { .images.dir_fd = -1 };
	auto_free char *dir = NULL;
	struct rehearsal done;
	const char *word;
	int r = wire_need_string(parameters, "checkpoint", &word, err);

	if (r == 0)
		r = decode_request(&request, parameters, err);
	op_init(&op, "rehearse", &job.target, &caller, &request);
	if (r == 0)
		r = access_store_there(&dir, parameters, err);
	if (r == 0)
		r = access_image(&image, dir, word, err);
	if (r == 0)
		r = take_job(&job, &image.manifest, err);
	if (r < 0)
		return r;
	op.restore.image = take_struct(image, STORE_IMAGE_EMPTY);
	r = engine_rehearse(&done, &op, err);
	return r < 0 ? r : answer(ret, &op, &done, err);
}
