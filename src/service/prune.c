// SPDX-License-Identifier: MIT
/* Prune and Sweep: letting checkpoints go by a rule, and what dead writers left. */
#include "remote/remote.h"
#include "service/access.h"
#include "service/service.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct pruning {
	const struct service_call *call;
	json_t *removed, *kept, *damaged;
	json_t *needed; /* {id: why} */
};

static bool may_prune(void *arg, const struct manifest *m)
{
	const struct pruning *p = arg;

	return p->call->uid == 0 || p->call->uid == m->job.uid;
}

static const char *needed_for(void *arg, const char *id)
{
	const struct pruning *p = arg;

	return json_string_value(json_object_get(p->needed, id));
}

static void tell(void *arg, enum store_pruned what, const char *id, const char *why)
{
	struct pruning *p = arg;

	if (what == STORE_PRUNE_REMOVED)
		json_array_append_new(p->removed, json_string(id));
	else if (what == STORE_PRUNE_KEPT || p->call->uid == 0)
		json_array_append_new(what == STORE_PRUNE_KEPT ? p->kept : p->damaged,
				      json_pack("{s:s,s:o}", "id", id, "text", wire_string(why)));
}

/* A job that is nowhere but on disk must not lose the checkpoint that it is. */
static void note_needed(void *arg, const struct job *j, const char *id,
			const struct brumate_error *why)
{
	struct pruning *p = arg;
	char text[160];

	if (!j || !j->checkpoint || job_is_alive(j) || j->state == JOB_EXITED)
		return;
	snprintf(text, sizeof(text), "job %s (%s) is nowhere else; `brumate rm %s` forgets it",
		 j->id, j->name, j->id);
	json_object_set_new(p->needed, j->checkpoint, json_string(text));
}

static int get_rule(struct store_prune *ret, json_t *parameters, struct brumate_error *err)
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
		return wire_fail_parameter(err, "keep_last", "want it or keep_within_ms");
	ret->rule = (struct retention_rule){ (unsigned)last, (uint64_t)within_ms };
	return 0;
}

int service_prune(const struct service_call *call, json_t *parameters, json_t **ret,
		  struct brumate_error *err)
{
	auto_json json_t *removed = json_array(), *kept = json_array(), *damaged = json_array(),
			 *needed = json_object();
	struct pruning p = { call, removed, kept, damaged, needed };
	struct store_prune prune = {
		.may = may_prune, .needed = needed_for, .tell = tell, .arg = &p
	};
	auto_free char *dir = NULL;
	int r = get_rule(&prune, parameters, err);

	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r == 0)
		r = job_list(note_needed, &p, err);
	if (r == 0)
		r = store_prune(dir, &prune, err);
	if (r < 0)
		return r;
	*ret = json_pack("{s:O,s:O,s:O}", "removed", removed, "kept", kept, "damaged", damaged);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}

int service_sweep(const struct service_call *call, json_t *parameters, json_t **ret,
		  struct brumate_error *err)
{
	auto_free char *dir = NULL;

	int r = access_root(call, "sweep a store", err);
	if (r == 0)
		r = access_store(&dir, call, parameters, err);
	if (r < 0)
		return r;
	int n = store_sweep(dir);
	if (n < 0)
		return brumate_fail(err, -n, "%s: %m", dir);
	n += remote_sweep(dir);
	*ret = json_pack("{s:i}", "swept", n);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
}
