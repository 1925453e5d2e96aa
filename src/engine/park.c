// SPDX-License-Identifier: MIT
/* Device memory out of and into job processes, through their agents. See park.h. */
#include "engine/park-private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/paths.h"
#include "engine/copy.h"
#include "datapath/vault.h"
#include "engine/steps.h"

/* ---- gate ---- */

static int gate_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	uint32_t timeout_ms = progress_left_ms(&op->progress, op->lock_timeout_ms);
	int r = park_reach(op, a, err);

	if (r == -ETIMEDOUT) /* no answer: that is not what a busy program looks like */
		return -ENOLINK;
	if (r < 0)
		return r;
	return agent_gate(&a->agent, timeout_ms, err);
}

/* What the library cannot take apart, the driver cannot restore either: docs/driver-behaviour.md. */
static bool loses(const struct op *op, const struct op_agent *a)
{
	return a->result == -EOPNOTSUPP && !op->request->force;
}

static int refuse_gate(const struct op_agent *a, struct brumate_error *err)
{
	*err = a->error;
	if (a->result == -ETIMEDOUT)
		brumate_hint(
			err,
			"a kernel or host callback that runs long holds the GPU; try again with a "
			"longer --timeout");
	else
		brumate_hint(err, "the driver would lose memory that is shared; --force tries it");
	return a->result;
}

int step_gate(struct op *op, struct brumate_error *err)
{
	if (op->was_suspended || !op->n_agents)
		return 1;
	int r = record_gpus(op, err);
	if (r < 0)
		return r;
	op->progress.stopped_ns = clock_now_ns();
	op->touched = true;
	park_each(op, gate_one, NULL);
	for (size_t i = 0; i < op->n_agents; i++) {
		const struct op_agent *a = &op->agents[i];

		if (a->result == -ETIMEDOUT || loses(op, a))
			return refuse_gate(a, err);
	}
	park_drop_failed(op);
	return op->n_agents ? 0 : 1;
}

/* ---- park ---- */

/* An imported piece cannot be exported again: its fd is the one we kept (wire/agent.h, OWN). */
static int take_kept_fd(struct op *op, struct op_agent *a, size_t i, struct brumate_error *err)
{
	size_t first, n = vault_find(op->vault, a->agent.id, &first);

	for (size_t k = first; k < first + n; k++)
		if (op->vault->pieces[k].id == a->pieces[i].id && op->vault->pieces[k].fd >= 0) {
			a->fds[i] = dup(op->vault->pieces[k].fd);
			return a->fds[i] < 0 ? brumate_fail(err, errno, "%m") : 0;
		}
	return brumate_fail(err, EOPNOTSUPP, "process %d: memory at %#llx is of another process",
			    a->agent.id.pid, (unsigned long long)a->pieces[i].va);
}

static int export_own(struct op_agent *a, struct brumate_error *err)
{
	auto_free uint64_t *ids = calloc(a->n_pieces + 1, sizeof(*ids));
	auto_free int *fds = calloc(a->n_pieces + 1, sizeof(*fds));
	size_t n = 0;

	if (!ids || !fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < a->n_pieces; i++)
		if (a->fds[i] < 0)
			ids[n++] = a->pieces[i].id;
	int r = agent_export(&a->agent, ids, n, fds, err);
	if (r < 0)
		return r;
	n = 0;
	for (size_t i = 0; i < a->n_pieces; i++)
		if (a->fds[i] < 0)
			a->fds[i] = fds[n++];
	return 0;
}

int park_export(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	struct agent_piece *pieces = NULL;
	size_t n = 0;
	int r = agent_list(&a->agent, &pieces, &n, err);

	if (r < 0)
		return r;
	op_agent_fini(a);
	a->pieces = pieces;
	a->fds = calloc(n + 1, sizeof(int));
	if (!a->fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (a->n_pieces = 0; a->n_pieces < n; a->n_pieces++)
		a->fds[a->n_pieces] = -1;
	for (size_t i = 0; r == 0 && i < n; i++)
		if (pieces[i].flags & AGENT_PIECE_IMPORTED)
			r = take_kept_fd(op, a, i, err);
	return r < 0 ? r : export_own(a, err);
}

/* What the agents gave becomes what is held, instead of what was. */
static int hold_exported(struct op *op, struct brumate_error *err)
{
	struct vault *h = op->vault;
	size_t n = 0;

	for (size_t i = 0; i < op->n_agents; i++)
		n += op->agents[i].n_pieces;
	struct vault_piece *all = calloc(n + 1, sizeof(*all));
	if (!all)
		return brumate_fail(err, ENOMEM, "%m");
	vault_release(h, op->job);
	h->pieces = all;
	for (size_t i = 0; i < op->n_agents; i++) {
		struct op_agent *a = &op->agents[i];

		for (size_t k = 0; k < a->n_pieces; k++) {
			struct vault_piece *p = &all[h->n_pieces++];

			*p = (struct vault_piece){ .process = a->agent.id,
						   .id = a->pieces[k].id,
						   .va = a->pieces[k].va,
						   .len_bytes = a->pieces[k].len_bytes,
						   .fd = take_fd(&a->fds[k]) };
			dev_uuid_format(p->gpu, a->pieces[k].gpu);
		}
	}
	return 0;
}

static int unmap_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	(void)op;
	return a->n_pieces ? agent_unmap(&a->agent, err) : 0;
}

int step_park(struct op *op, struct brumate_error *err)
{
	struct vault *h = op->vault;

	if (op->was_suspended || !op->n_agents)
		return 1;
	uint64_t start_ns = clock_now_ns();
	int r = park_each(op, park_export, err);
	if (r == 0)
		r = hold_exported(op, err);
	if (r < 0 || !h->n_pieces)
		return r;
	progress_phase(&op->progress, "export", start_ns);
	start_ns = clock_now_ns();
	if ((r = vault_guard(h, op->job, err)) < 0 || (r = vault_save(h, op->job, err)) < 0)
		return r;
	progress_phase(&op->progress, "hold", start_ns);
	op->data_bytes = vault_bytes(h);
	return 0;
}

int step_unmap(struct op *op, struct brumate_error *err)
{
	if (op->was_suspended || !op->n_agents || !op->vault->n_pieces)
		return 1;
	return park_each(op, unmap_one, err);
}

/* ---- back ---- */

static int map_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	size_t first, n = vault_find(op->vault, a->agent.id, &first);
	auto_free uint64_t *ids = calloc(n + 1, sizeof(*ids));
	auto_free int *fds = calloc(n + 1, sizeof(*fds));
	int r = park_reach(op, a, err);

	if (!ids || !fds)
		return brumate_fail(err, ENOMEM, "%m");
	if (r < 0 || a->agent.gate != AGENT_GATE_UNMAPPED)
		return r;
	for (size_t i = 0; i < n; i++) {
		ids[i] = op->vault->pieces[first + i].id;
		fds[i] = op->vault->pieces[first + i].fd;
	}
	return agent_map(&a->agent, ids, fds, n, err);
}

/* Which pieces stay imported is remembered: their fds are kept for the next time. */
static int own_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	struct agent_piece *pieces = NULL;
	size_t imported = 0, n = 0;

	(void)op;
	if (a->agent.gate == AGENT_GATE_OPEN)
		return 0; /* the driver has brought its memory back */
	int r = agent_own(&a->agent, &imported, err);
	if (r == 0 && imported)
		r = agent_list(&a->agent, &pieces, &n, err);
	if (r < 0)
		return r;
	op_agent_fini(a);
	a->pieces = pieces;
	a->n_pieces = n;
	return 0;
}

static bool is_imported(const struct op *op, const struct vault_piece *p)
{
	for (size_t i = 0; i < op->n_agents; i++) {
		const struct op_agent *a = &op->agents[i];

		if (a->agent.id.pid != p->process.pid)
			continue;
		for (size_t k = 0; k < a->n_pieces; k++)
			if (a->pieces[k].id == p->id && a->pieces[k].flags & AGENT_PIECE_IMPORTED)
				return true;
	}
	return false;
}

static bool is_owned(void *arg, const struct vault_piece *p)
{
	return !is_imported(arg, p);
}

static size_t count_imported(const struct op *op)
{
	size_t n = 0;

	for (size_t i = 0; i < op->n_agents; i++)
		for (size_t k = 0; k < op->agents[i].n_pieces; k++)
			n += (op->agents[i].pieces[k].flags & AGENT_PIECE_IMPORTED) != 0;
	return n;
}

/* Each copy needs room beside what it replaces, and the fds of what was replaced keep that: letting go of
 * them makes room for more, until none is left or nothing moves any more. */
static int own_all(struct op *op, struct brumate_error *err)
{
	size_t before = SIZE_MAX;

	for (;;) {
		int r = park_each(op, own_one, err);
		size_t n = count_imported(op);

		if (r < 0 || !n || n >= before)
			return r;
		before = n;
		vault_drop_pieces(op->vault, is_owned, op);
	}
}

int step_map(struct op *op, struct brumate_error *err)
{
	if (!op->n_agents)
		return 1;
	int r = op->ahead ? 0 : park_each(op, park_empty, err);

	if (r == 0)
		r = park_each(op, map_one, err);
	if (r < 0)
		return r;
	uint64_t start_ns = clock_now_ns();
	r = own_all(op, err);
	progress_phase(&op->progress, "own", start_ns);
	return r;
}

static int open_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	int r = park_reach(op, a, err);

	if (r == 0 && a->agent.gate != AGENT_GATE_OPEN)
		r = agent_open_gate(&a->agent, err);
	return r;
}

/* So that the next shim finds it. */
static void save_kept(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	op->job->kept_bytes = vault_baseline_bytes(op->vault);
	if (op->job->kept_bytes && vault_save(op->vault, op->job, &err) < 0)
		log_warn("the kept host copy is known to the shim alone: job=%s reason=\"%s\"",
			 op->job->id, err.text);
}

static void let_copy(struct op *op)
{
	struct vault *h = op->vault;
	struct host_copy *saved = op->memory ? &op->saved : NULL;

	if (op->drop_kept || op->live_base)
		vault_drop_baseline(h);
	if (!op->keep_copy || !h->copied) {
		vault_release_copy(h, saved);
	} else if (!vault_make_baseline(h, saved)) {
		progress_note(&op->progress,
			      "the host copy is not kept: it has no digests, or lies on a disk");
		vault_release_copy(h, saved);
	}
}

/* What is held is let go, but for pieces that their process only imports. */
static void release(struct op *op)
{
	struct vault *h = op->vault;
	struct vault rest = VAULT_EMPTY;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	let_copy(op);
	rest.pieces = calloc(h->n_pieces + 1, sizeof(*rest.pieces));
	for (size_t i = 0; rest.pieces && i < h->n_pieces; i++)
		if (h->pieces[i].fd >= 0 && is_imported(op, &h->pieces[i])) {
			rest.pieces[rest.n_pieces] = h->pieces[i];
			rest.pieces[rest.n_pieces++].fd = take_fd(&h->pieces[i].fd);
		}
	if (!rest.n_pieces) {
		vault_fini(&rest);
		vault_release(h, op->job);
		save_kept(op);
		return;
	}
	rest.kept = h->kept;
	h->kept = (struct vault_baseline){ 0 };
	vault_clear(h, op->job);
	*h = rest;
	op->job->kept_bytes = vault_baseline_bytes(h);
	if (vault_guard(h, op->job, &err) < 0 || vault_save(h, op->job, &err) < 0)
		log_warn("imported memory is held by the shim alone: job=%s reason=\"%s\"",
			 op->job->id, err.text);
}

int step_open(struct op *op, struct brumate_error *err)
{
	if (!op->n_agents)
		return 1;
	int r = park_each(op, open_one, err);

	if (r < 0)
		return r;
	op->progress.released_ns = clock_now_ns();
	park_detach(op);
	release(op);
	return 0;
}

/* ---- from whatever state ---- */

static int look_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	/* A connection may be out of step with what became of its last request: a fresh one tells. */
	agent_detach(&a->agent);
	int r = park_reach(op, a, err);
	if (r < 0)
		return r;
	op_agent_fini(a);
	return agent_list(&a->agent, &a->pieces, &a->n_pieces, err);
}

int park_look(struct op *op, struct brumate_error *err)
{
	return park_each(op, look_one, err);
}

static bool any_unmapped(const struct op *op)
{
	for (size_t i = 0; i < op->n_agents; i++)
		if (op->agents[i].agent.gate == AGENT_GATE_UNMAPPED)
			return true;
	return false;
}

/* Memory that was mapped again, but is not yet the process's own, becomes so behind a closed gate; where
 * the program is too busy for that, it stays imported, and its fds are kept. */
static int prepare_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	bool imported = false;

	if (a->agent.gate == AGENT_GATE_UNMAPPED)
		return map_one(op, a, err);
	for (size_t i = 0; i < a->n_pieces; i++)
		imported = imported || a->pieces[i].flags & AGENT_PIECE_IMPORTED;
	if (imported && a->agent.gate == AGENT_GATE_OPEN)
		agent_gate(&a->agent, op->lock_timeout_ms, NULL);
	return 0;
}

static int map_and_own(struct op *op, struct brumate_error *err)
{
	int r = park_each(op, prepare_one, err);

	return r < 0 ? r : own_all(op, err);
}

int park_return(struct op *op, struct brumate_error *err)
{
	int r;

	if (!op->vault || op->job->data_path != JOB_DATA_BROKER)
		return 0;
	if (!op->n_agents)
		park_find(op);
	if ((r = park_check(op, err)) < 0 || (r = park_each(op, look_one, err)) < 0)
		return r;
	/* What is mapped of memory that was not whole may be of a copy that did not end well. */
	if (any_unmapped(op) && !vault_has_device(op->vault) &&
	    (r = park_each(op, park_empty, err)) == 0)
		r = copy_back(op, err);
	if (r == 0)
		r = map_and_own(op, err);
	if (r == 0)
		r = step_open(op, err);
	return r < 0 ? r : 0;
}

void step_undo_park(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->was_suspended || !op->touched || !op->n_agents || !job_is_alive(op->job))
		return;
	if (park_return(op, &err) < 0)
		log_error("device memory could not be brought back: job=%s reason=\"%s\"",
			  op->job->id, err.text);
	op->progress.released_ns = clock_now_ns();
}

/* ---- away again ---- */

static int take_out_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	(void)op;
	return a->n_pieces ? agent_unmap(&a->agent, err) : 0;
}

/* True where the program may have run since its memory was put in: what is held is too old then. */
static bool any_open(const struct op *op)
{
	for (size_t i = 0; i < op->n_agents; i++)
		if (op->agents[i].agent.gate == AGENT_GATE_OPEN && op->agents[i].n_pieces)
			return true;
	return false;
}

int park_put_away(struct op *op, struct brumate_error *err)
{
	int r;

	if (!op->vault || op->job->data_path != JOB_DATA_BROKER)
		return 0;
	if (!op->n_agents)
		park_find(op);
	if ((r = park_each(op, look_one, err)) < 0)
		return r;
	if (!any_open(op) && (op->vault->copied || vault_has_device(op->vault))) {
		r = park_each(op, take_out_one, err);
		if (op->vault->copied)
			vault_drop_device(op->vault);
		return r;
	}
	if (any_unmapped(op) && !vault_has_device(op->vault))
		r = copy_back(op, err);
	if (r == 0)
		r = map_and_own(op, err);
	if (r < 0 || (r = step_gate(op, err)) < 0 || (r = step_park(op, err)) < 0 ||
	    (r = step_unmap(op, err)) < 0)
		return r;
	return copy_away(op, err);
}

void step_undo_map(struct op *op)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (op->n_agents && op->touched && job_is_alive(op->job) && park_put_away(op, &err) < 0)
		log_error("device memory could not be taken out again: job=%s reason=\"%s\"",
			  op->job->id, err.text);
}

void park_discard(struct op *op)
{
	if (op->job->data_path != JOB_DATA_BROKER || !op->vault)
		return;
	park_find(op);
	if (park_each(op, gate_one, NULL) == 0 && park_each(op, look_one, NULL) == 0)
		park_each(op, take_out_one, NULL);
	park_detach(op);
}
