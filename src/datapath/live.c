// SPDX-License-Identifier: MIT
/* Copies device memory of a running program. See move.h. */
#include "datapath/move.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "datapath/park.h"

enum { PASSES_MAX = 4 };

#define ENOUGH_BYTES (256ull << 20) /* what is left is copied faster than the job is stopped */

/* The pieces at present, in the order in which they would be parked. */
struct live {
	struct datapath *d;
	struct vault_piece *pieces;
	struct device_piece *data;
	int *fds; /* borrowed from the agents */
	size_t n;
};

static void live_fini(struct live *l)
{
	free(l->pieces);
	free(l->data);
	free(l->fds);
}
DEFINE_AUTO_FINI(struct live, live_fini)

static void add_pieces(struct live *l, const struct datapath_agent *a)
{
	for (size_t i = 0; i < a->n_pieces; i++, l->n++) {
		struct vault_piece p = vault_piece_of(a->agent.id, &a->pieces[i]);

		l->pieces[l->n] = p;
		l->data[l->n].len_bytes = p.len_bytes;
		memcpy(l->data[l->n].gpu, p.gpu, sizeof(p.gpu));
		l->fds[l->n] = a->fds[i];
	}
}

static int find_pieces(struct live *l, struct brumate_error *err)
{
	struct datapath *d = l->d;
	int r = park_borrow(d, err);

	if (r < 0)
		return r;
	const size_t n = agents_count_pieces(d, d->n_agents);
	l->pieces = calloc(n + 1, sizeof(*l->pieces));
	l->data = calloc(n + 1, sizeof(*l->data));
	l->fds = calloc(n + 1, sizeof(*l->fds));
	if (!l->pieces || !l->data || !l->fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (size_t i = 0; i < d->n_agents; i++)
		add_pieces(l, &d->agents[i]);
	return 0;
}

static int check_going_on(void *arg, uint64_t done_bytes)
{
	const struct datapath *d = arg;

	(void)done_bytes;
	return progress_check(d->progress, NULL);
}

static int copy_fresh(struct live *l, struct transfer_client *s,
		      const struct transfer_request *request, struct transfer_spared *ret_spared,
		      struct brumate_error *err)
{
	struct vault *v = l->d->vault;
	struct host_copy copy = HOST_COPY_EMPTY;

	vault_drop_baseline(v);
	int r = transfer_client_out(s, request, l->fds, &copy, ret_spared, err);
	if (r < 0)
		return r;
	l->d->keep.live = true;
	v->baseline = (struct vault_baseline){ take_ptr(&l->pieces), l->n, copy, false };
	return 0;
}

/* @ret_bytes: what was copied because it had changed. */
static int copy_once(struct live *l, bool fits, uint64_t *ret_bytes, struct brumate_error *err)
{
	const struct transfer_request request = { .pieces = l->data,
						  .n = l->n,
						  .digests = true,
						  .live = true,
						  .progress = check_going_on,
						  .arg = l->d };
	struct transfer_spared spared;
	struct vault *v = l->d->vault;
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	auto_(transfer_client_close) struct transfer_client *s = NULL;
	int r = fault_point("live.copy");

	if (r < 0)
		return brumate_fail(err, -r, "injected: %m");
	r = broker_client_open(&broker, &l->d->target->gpu_kind, err);
	if (r == 0)
		r = transfer_client_open(&s, &broker, err);
	if (r < 0)
		return r;
	r = fits ? transfer_client_update(s, &request, l->fds, &v->baseline.copy, &spared, err)
		 : copy_fresh(l, s, &request, &spared, err);
	if (r == 0)
		*ret_bytes =
			host_copy_offset(l->data, l->n) - spared.zero_bytes - spared.same_bytes;
	return r;
}

/* Repeats until little is left, or a pass copies more than half as much as the one before. */
static int copy_passes(struct live *l, struct brumate_error *err)
{
	bool fits = vault_baseline_fits(l->d->vault, l->pieces, l->n);
	uint64_t before = UINT64_MAX, bytes = 0, start_ns = clock_now_ns();
	int r = 0;

	for (int pass = 0; pass < PASSES_MAX; pass++) {
		r = copy_once(l, fits, &bytes, err);
		if (r < 0)
			return r;
		if (pass == 0)
			progress_phase(l->d->progress, "live-first", start_ns);
		log_debug("live pass %d copied bytes=%llu", pass + 1, (unsigned long long)bytes);
		if (bytes <= ENOUGH_BYTES || bytes > before / 2)
			break;
		before = bytes;
		fits = true;
	}
	return r;
}

/* Returns 1 if there was nothing to copy. */
static int try_live_copy(struct datapath *d, live_wanted_fn wanted, void *arg,
			 struct brumate_error *err)
{
	auto_(live_fini) struct live l = { .d = d };
	int r = find_pieces(&l, err);

	if (r == 0)
		r = l.n && wanted(arg, l.pieces, l.n) ? copy_passes(&l, err) : 1;
	for (size_t i = 0; i < d->n_agents; i++)
		datapath_agent_fini(&d->agents[i]);
	return r;
}

int live_copy(struct datapath *d, live_wanted_fn wanted, void *arg, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (!d->n_agents)
		return 1;
	int r = try_live_copy(d, wanted, arg, &why);
	if (r >= 0)
		return r;
	vault_drop_baseline(d->vault);
	if ((r = progress_check(d->progress, err)) < 0)
		return r;
	log_info("no live copy: job=%s reason=\"%s\"", d->target->id, why.text);
	return 0;
}

/* ---- how much of it is zero ---- */

/* The pieces of the vault, whose device memory is held. */
static int find_parked(struct live *l, struct brumate_error *err)
{
	const struct vault *v = l->d->vault;

	l->data = vault_device_pieces(v);
	l->fds = calloc(v->n_pieces + 1, sizeof(*l->fds));
	if (!l->data || !l->fds)
		return brumate_fail(err, ENOMEM, "%m");
	for (; l->n < v->n_pieces; l->n++)
		l->fds[l->n] = v->pieces[l->n].fd;
	return 0;
}

static int count_once(struct live *l, uint64_t *ret_bytes, struct digest_table *digests,
		      struct brumate_error *err)
{
	const struct transfer_request request = {
		.pieces = l->data, .n = l->n, .progress = check_going_on, .arg = l->d
	};
	auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
	auto_(transfer_client_close) struct transfer_client *s = NULL;
	int r = broker_client_open(&broker, &l->d->target->gpu_kind, err);

	if (r == 0)
		r = transfer_client_open(&s, &broker, err);
	return r < 0 ? r : transfer_client_count(s, &request, l->fds, digests, ret_bytes, err);
}

/* Whether all pieces of the vault are device memory that it holds. */
static bool is_parked(const struct datapath *d)
{
	return d->vault->n_pieces && vault_has_device(d->vault);
}

int live_count_zeros(struct datapath *d, uint64_t *ret_bytes, struct digest_table **ret_digests,
		     struct brumate_error *err)
{
	auto_(live_fini) struct live l = { .d = d };
	auto_(digest_table_free) struct digest_table *digests = NULL;
	const bool parked = is_parked(d);
	int r = parked ? find_parked(&l, err) : find_pieces(&l, err);

	*ret_bytes = 0;
	if (r == 0 && l.n && digest_table_new(&digests, host_copy_offset(l.data, l.n)) < 0)
		digests = NULL;
	if (r == 0 && l.n)
		r = count_once(&l, ret_bytes, digests, err);
	if (r == 0 && digests && digest_table_is_whole(digests))
		*ret_digests = take_ptr(&digests);
	for (size_t i = 0; !parked && i < d->n_agents; i++)
		datapath_agent_fini(&d->agents[i]);
	return r;
}

void live_undo(struct datapath *d)
{
	if (d->keep.live && d->vault)
		vault_drop_baseline(d->vault);
}
