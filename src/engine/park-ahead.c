// SPDX-License-Identifier: MIT
/*
 * Device memory that comes back to a job while the rest of it is still being filled: each piece is mapped
 * as soon as it is full (and no more: copies on the GPU beside those of the broker slow both down). The
 * last piece of every process waits for the end of the copy, which says whether all bytes are right:
 * until then a piece is missing, and neither a request nor the end of the shim opens a gate. What is done
 * here may fail or become void; then step_map() does it all, from nothing.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/fault.h"
#include "base/log.h"
#include "engine/copy.h"
#include "datapath/vault.h"
#include "engine/park-private.h"
#include "engine/steps.h"

struct ahead {
	struct op_agent *agent;
	uint64_t *ids; /* of its pieces */
	size_t first, n, done;
};

static int map_some(struct ahead *a, const int *fds, size_t end, struct brumate_error *err)
{
	int r = agent_map(&a->agent->agent, a->ids + a->done, fds + a->first + a->done,
			  end - a->done, err);

	if (r < 0)
		return r;
	a->done = end;
	r = fault_point("ahead.mapped");
	return r < 0 ? brumate_fail(err, -r, "injected: %m") : 0;
}

/* To the end of the copy, also when there is nothing more to do: only then it is known to count. */
static int follow_copy(struct op *op, struct ahead *a, struct brumate_error *err)
{
	size_t filled = 0;
	const int *fds;
	int r = 0;

	while ((filled = copy_wait_filled(op, filled, &fds))) {
		size_t end = filled > a->first ? filled - a->first : 0;

		end = end < a->n ? end : a->n - 1;
		if (r == 0 && end > a->done)
			r = map_some(a, fds, end, err);
	}
	return r;
}

/* Whatever is mapped goes: an agent that has all of its memory is asked for nothing. */
int park_empty(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	int r = park_reach(op, a, err);

	return r == 0 && a->agent.gate == AGENT_GATE_UNMAPPED ? agent_unmap(&a->agent, err) : r;
}

static int ahead_one(struct op *op, struct op_agent *agent, struct brumate_error *err)
{
	struct ahead a = { .agent = agent };

	a.n = vault_find(op->vault, agent->agent.id, &a.first);
	auto_free uint64_t *ids = calloc(a.n + 1, sizeof(*ids));
	if (!ids)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < a.n; i++)
		ids[i] = op->vault->pieces[a.first + i].id;
	a.ids = ids;
	int r = park_empty(op, agent, err);
	if (r == 0 && a.n && agent->agent.gate == AGENT_GATE_UNMAPPED)
		r = follow_copy(op, &a, err);
	if (a.done && copy_is_stale(op))
		r = park_empty(op, agent, err);
	return r;
}

int step_map_ahead(struct op *op, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	(void)err;
	if (!op->n_agents || !copy_begin_ahead(op))
		return 1;
	int r = park_each(op, ahead_one, &why);
	op->ahead = r == 0 && !copy_is_stale(op);
	copy_end_ahead(op);
	if (r < 0)
		log_info("device memory is mapped at the end: job=%s reason=\"%s\"", op->job->id,
			 why.text);
	return 1;
}
