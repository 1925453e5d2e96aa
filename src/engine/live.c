// SPDX-License-Identifier: MIT
/* Copying device memory of a job that runs. See live.h. */
#include "engine/live.h"

#include <errno.h>
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "datapath/vault.h"
#include "engine/park-private.h"

enum { PASSES_MAX = 4, EXPORT_TRIES = 3 };

#define ENOUGH_BYTES (256ull << 20) /* left to copy: it takes no longer than to stop the job */

/* The pieces as they are now, in the order in which they are parked. */
struct live {
	struct op *op;
	struct vault_piece *pieces;
	struct device_piece *data;
	int *fds; /* borrowed of op->agents */
	size_t n;
};

static void live_fini(struct live *l)
{
	free(l->pieces);
	free(l->data);
	free(l->fds);
}
DEFINE_AUTO_FINI(struct live, live_fini)

static int export_one(struct op *op, struct op_agent *a, struct brumate_error *err)
{
	int r = park_reach(op, a, err);

	/* A piece may be freed between being listed and being exported. */
	for (int tries = 0; r == 0 && tries < EXPORT_TRIES; tries++) {
		r = park_export(op, a, err);
		if (r != -ENOENT)
			break;
		r = tries + 1 < EXPORT_TRIES ? 0 : r;
	}
	return r;
}

static void add_pieces(struct live *l, const struct op_agent *a)
{
	for (size_t i = 0; i < a->n_pieces; i++, l->n++) {
		struct vault_piece *p = &l->pieces[l->n];

		*p = (struct vault_piece){ .process = a->agent.id,
					   .id = a->pieces[i].id,
					   .va = a->pieces[i].va,
					   .len_bytes = a->pieces[i].len_bytes,
					   .fd = -1 };
		dev_uuid_format(p->gpu, a->pieces[i].gpu);
		l->data[l->n].len_bytes = p->len_bytes;
		memcpy(l->data[l->n].gpu, p->gpu, sizeof(p->gpu));
		l->fds[l->n] = a->fds[i];
	}
}

static int find_pieces(struct live *l, struct brumate_error *err)
{
	struct op *op = l->op;
	size_t n = 0;
	int r = park_each(op, export_one, err);

	park_detach(op); /* the program's own processes may want its agents meanwhile */
	if (r < 0)
		return r;
	for (size_t i = 0; i < op->n_agents; i++)
		n += op->agents[i].n_pieces;
	l->pieces = calloc(n + 1, sizeof(*l->pieces));
	l->data = calloc(n + 1, sizeof(*l->data));
	l->fds = calloc(n + 1, sizeof(*l->fds));
	if (!l->pieces || !l->data || !l->fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < op->n_agents; i++)
		add_pieces(l, &op->agents[i]);
	return 0;
}

static int progress(void *arg, uint64_t done_bytes)
{
	struct op *op = arg;

	(void)done_bytes;
	return progress_check(&op->progress, NULL);
}

static int copy_fresh(struct live *l, struct transfer_client *s,
		      const struct transfer_request *request, struct transfer_spared *ret_spared,
		      struct brumate_error *err)
{
	struct vault *h = l->op->vault;
	struct host_copy copy = HOST_COPY_EMPTY;

	vault_drop_baseline(h);
	int r = transfer_client_out(s, request, l->fds, &copy, ret_spared, err);
	if (r < 0)
		return r;
	l->op->live_base = true;
	h->kept = (struct vault_baseline){ take_ptr(&l->pieces), l->n, copy };
	return 0;
}

/* *ret_bytes: what was copied, and so had changed. */
static int copy_once(struct live *l, bool fits, uint64_t *ret_bytes, struct brumate_error *err)
{
	const struct transfer_request request = { .pieces = l->data,
						  .n = l->n,
						  .digests = true,
						  .live = true,
						  .progress = progress,
						  .arg = l->op };
	struct transfer_spared spared;
	struct vault *h = l->op->vault;
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	auto_(transfer_client_close) struct transfer_client *s = NULL;
	int r = fault_point("live.copy");

	if (r < 0)
		return brumate_fail(err, -r, "injected: %m");
	r = broker_client_open(&broker, l->op->job->simulated, err);
	if (r == 0)
		r = transfer_client_open(&s, &broker, err);
	if (r < 0)
		return r;
	r = fits ? transfer_client_update(s, &request, l->fds, &h->kept.copy, &spared, err)
		 : copy_fresh(l, s, &request, &spared, err);
	if (r == 0)
		*ret_bytes =
			host_copy_offset(l->data, l->n) - spared.zero_bytes - spared.same_bytes;
	return r;
}

/* Until little is left, or no less than before. */
static int copy_passes(struct live *l, struct brumate_error *err)
{
	bool fits = vault_baseline_fits(l->op->vault, l->pieces, l->n);
	uint64_t before = UINT64_MAX, bytes = 0;
	int r = 0;

	for (int pass = 0; pass < PASSES_MAX; pass++) {
		r = copy_once(l, fits, &bytes, err);
		if (r < 0)
			return r;
		log_debug("live pass %d copied bytes=%llu", pass + 1, (unsigned long long)bytes);
		if (bytes <= ENOUGH_BYTES || bytes > before / 2)
			break;
		before = bytes;
		fits = true;
	}
	return r;
}

static void close_fds(struct op *op)
{
	for (size_t i = 0; i < op->n_agents; i++)
		op_agent_fini(&op->agents[i]);
}

int step_live(struct op *op, struct brumate_error *err)
{
	auto_(live_fini) struct live l = { .op = op };
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!op->request->live || op->was_suspended || op->request->park)
		return 1;
	if (!op->n_agents) {
		progress_note(&op->progress,
			      "no live copy: device memory goes by the driver alone");
		return 1;
	}
	int r = find_pieces(&l, &why);
	if (r == 0 && l.n)
		r = copy_passes(&l, &why);
	close_fds(op);
	if (r >= 0)
		return l.n ? 0 : 1;
	vault_drop_baseline(op->vault);
	if ((r = progress_check(&op->progress, err)) < 0)
		return r;
	progress_note(&op->progress, "no live copy: %s", why.text);
	return 0;
}

void step_undo_live(struct op *op)
{
	if (op->live_base && op->vault)
		vault_drop_baseline(op->vault);
}
