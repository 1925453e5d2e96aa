// SPDX-License-Identifier: MIT
/*
 * What a suspend or a checkpoint would do: its first steps, which look and refuse, then figures. The job, its record and its
 * events stay as they are. How long it would take is judged by the events of this state directory, of this
 * machine and not of another.
 */
#include "engine/engine.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/machine.h"
#include "engine/secret.h"
#include "engine/steps.h"
#include "job/events.h"
#include "wire/wire.h"

/* Steps of the plans that come before anything is touched. */
enum { FORESEEN_STEPS = 2 };

/* Where the store is not there yet, the checkpoint would make it, and no name is taken. */
static int foresee_image(struct op *op, struct brumate_error *err)
{
	struct store_writer *w = &op->checkpoint.writer;
	int r = access(op->request->dir, F_OK) == 0 || errno != ENOENT
			? store_begin(w, op->request->dir, op->request->id, err)
			: store_refuse_dangling(op->request->dir, err);

	if (r == -EEXIST && op->request->unnamed) { /* it would get the next one */
		*err = BRUMATE_ERROR_NONE;
		r = 0;
	}
	if (r == 0)
		r = secret_begin(op, err);
	store_abort(w);
	return r;
}

static bool is_checkpoint(const struct op *op)
{
	return !strcmp(op->kind, "checkpoint");
}

static int look(struct op *op, struct brumate_error *err)
{
	size_t n;
	const struct step *plan = is_checkpoint(op) ? checkpoint_plan(&n) : suspend_plan(&n);
	struct step steps[FORESEEN_STEPS + 1] = {
		[FORESEEN_STEPS] = { "image", "the store", foresee_image, NULL },
	};

	memcpy(steps, plan, FORESEEN_STEPS * sizeof(*steps));
	return plan_run(steps, FORESEEN_STEPS + is_checkpoint(op), op, err);
}

/* ---- figures ---- */

static int add_time(json_t *o, const struct op *op, uint64_t bytes)
{
	struct event_figures like;
	const bool goes_on = is_checkpoint(op) && op->request->leave_running;
	const char *key = is_checkpoint(op) ? "image_bytes" : "gpu_bytes";

	if (events_find_like(&like, op->kind, key, bytes, goes_on) < 0)
		return 0;
	const double factor = like.bytes ? (double)bytes / (double)like.bytes : 1;
	double seconds = like.seconds * factor;

	if (seconds < like.least_seconds)
		seconds = like.least_seconds;
	if (json_object_set_new(o, "seconds", json_real(seconds)) < 0 ||
	    json_object_set_new(o, "like_bytes", json_integer((json_int_t)like.bytes)) < 0 ||
	    json_object_set_new(o, "like_time", json_string(like.time)) < 0)
		return -ENOMEM;
	return goes_on ? json_object_set_new(o, "downtime_s",
					     json_real(like.downtime_s * (factor < 1 ? 1 : factor)))
		       : 0;
}

/* Memory for the copy of a suspended job; for a checkpoint, what the file system of its store has left. */
static json_t *room(const struct op *op)
{
	uint64_t bytes = 0;
	const bool known = is_checkpoint(op)
				   ? store_free_bytes(op->request->dir, &bytes, NULL) == 0 &&
					     bytes != UINT64_MAX
				   : machine_meminfo("MemAvailable", &bytes);

	return known ? json_integer((json_int_t)bytes) : json_null();
}

static json_t *notes(const struct progress *p)
{
	json_t *list = json_array();

	for (size_t i = 0; i < p->n_notes; i++)
		json_array_append_new(list, wire_string(p->notes[i]));
	return list;
}

static int tell(json_t **ret, const struct op *op, struct brumate_error *err)
{
	const uint64_t bytes = is_checkpoint(op) ? op->image_bytes : op->gpu_bytes;
	auto_json json_t *o = json_pack(
		"{s:s,s:s,s:s,s:I,s:I,s:o,s:o}", "operation", op->kind, "job", op->target->id,
		"job_name", op->target->name, "gpu_bytes", (json_int_t)op->gpu_bytes, "bytes",
		(json_int_t)bytes, "room_bytes", room(op), "notes", notes(&op->progress));

	if (!o || add_time(o, op, bytes) < 0 ||
	    (is_checkpoint(op) && json_object_set_new(o, "dir", wire_string(op->request->dir)) < 0))
		return brumate_fail(err, ENOMEM, "%m");
	*ret = take_ptr(&o);
	return 0;
}

int engine_foresee(json_t **ret, struct op *op, struct brumate_error *err)
{
	int r = is_checkpoint(op) ? check_rehearse(op, err) : 0;

	op->was_suspended = op->target->state == JOB_SUSPENDED;
	if (r == 0)
		r = op_check_thawed(op, err);
	if (r == 0)
		r = look(op, err);
	return r < 0 ? engine_unseen(op, r, err) : tell(ret, op, err);
}
