// SPDX-License-Identifier: MIT
/* Copying device memory beside an operation. See copy.h. */
#include "engine/copy-private.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "datapath/vault.h"
#include "engine/regions.h"

enum { BROKER_TRIES = 3 };

static void copy_free(struct copy *c)
{
	if (!c)
		return;
	copy_drop_early(c);
	pthread_mutex_destroy(&c->lock);
	pthread_cond_destroy(&c->changed);
	for (size_t i = 0; c->in && c->fds && i < c->n; i++)
		cleanup_close(&c->fds[i]);
	free(c->fds);
	free(c->pieces);
	free(c->places);
	if (c->update) /* and half up to date, or it would not be here */
		vault_give_up_baseline(c->op->vault, &c->copy);
	host_copy_fini(&c->copy);
	free(c);
}

bool copy_is_on(const struct op *op)
{
	return op->copy;
}

uint64_t copy_measure(void *arg)
{
	const struct op *op = arg;

	return op->copy ? op->copy->done_bytes : 0;
}

uint64_t copy_total_bytes(const struct op *op)
{
	return op->copy ? op->copy->total_bytes : 0;
}

/* ---- in the thread ---- */

static int progress(void *arg, uint64_t done_bytes)
{
	struct copy *c = arg;

	c->done_bytes = done_bytes;
	if (c->stop)
		return -ECANCELED;
	return c->forced ? 0 : progress_check(&c->op->progress, NULL);
}

static bool is_cancelled(void *arg)
{
	struct copy *c = arg;

	return c->stop || progress_check(&c->op->progress, NULL) < 0;
}

/* What is whole goes to the store beside what is still copied. */
static void save_whole(void *arg, const struct host_copy *copy, size_t n_whole,
		       const struct digest *digests)
{
	struct copy *c = arg;
	uint64_t end = n_whole * copy->segment_bytes;

	end = end < copy->total_bytes ? end : copy->total_bytes;
	if (c->save_r < 0 || end <= c->saved_bytes)
		return;
	c->save_r = regions_save_part(c->op, copy, c->saved_bytes, end, digests, &c->save_err);
	c->saved_bytes = end;
}

/* What the store still lacks. */
static int save_rest(struct copy *c)
{
	if (c->save_r < 0) {
		c->err = c->save_err;
		return c->save_r;
	}
	return regions_save(c->op, &c->copy, c->saved_bytes, &c->err);
}

static int move(struct copy *c, struct transfer_client *s, struct brumate_error *err)
{
	/* A job that waits to go on is not to wait for processors. */
	const bool early = c->op->memory && !c->op->request->leave_running;
	const struct transfer_request request = { .pieces = c->pieces,
						  .n = c->n,
						  .digests = true,
						  .progress = progress,
						  .whole = early ? save_whole : NULL,
						  .filled = copy_note_filled,
						  .arg = c };

	c->moving_ns = clock_now_ns();
	if (c->in)
		return transfer_client_in(s, &request, c->from, c->fds, &c->compared, err);
	return c->update ? transfer_client_update(s, &request, c->fds, &c->copy, &c->spared, err)
			 : transfer_client_out(s, &request, c->fds, &c->copy, &c->spared, err);
}

/* With a broker connection of its own: the operation's is busy with the driver. */
static int with_session(struct copy *c, int (*fn)(struct copy *c, struct transfer_client *s,
						  struct brumate_error *err))
{
	int r = -EPIPE;

	for (int tries = 0; r == -EPIPE && tries < BROKER_TRIES && !c->stop; tries++) {
		auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
		auto_(transfer_client_close) struct transfer_client *s = NULL;

		if (tries && c->early)
			copy_void_early(c);
		c->err = BRUMATE_ERROR_NONE;
		r = broker_client_open(&broker, c->op->job->simulated, &c->err);
		if (r == 0)
			r = transfer_client_open(&s, &broker, &c->err);
		if (r == 0)
			r = fn(c, s, &c->err);
	}
	return r;
}

static int alloc_zeros(struct copy *c, struct transfer_client *s, struct brumate_error *err)
{
	return transfer_client_alloc(s, c->total_bytes, false, &c->copy, err);
}

static int alloc_as_is(struct copy *c, struct transfer_client *s, struct brumate_error *err)
{
	return transfer_client_alloc(s, c->total_bytes, true, &c->copy, err);
}

/* Out of the store into host memory. Each digest is compared if @verify, or if the GPU will not do it. */
static int load(struct copy *c, bool verify)
{
	const struct regions_load how = { .places = c->places,
					  .as_is = !verify,
					  .verify = verify,
					  .cancelled = is_cancelled,
					  .arg = c };
	int r = with_session(c, verify ? alloc_zeros : alloc_as_is);

	if (r < 0)
		return r;
	if (digest_table_new(&c->copy.digests, c->total_bytes) < 0)
		c->copy.digests = NULL; /* then they are compared here */
	r = regions_load(c->op, &c->copy, &how, &c->err);
	c->unverified = r > 0;
	return r < 0 ? r : 0;
}

/* What the GPU did not find right, or could not compare, is read again, each digest compared: that tells what
 * is damaged, if it is the image. */
static int load_again(struct copy *c)
{
	log_warn("device memory is read again from the checkpoint: job=%s reason=\"%s\"",
		 c->op->job->id, c->err.code ? c->err.text : "its digests were not compared");
	if (c->early)
		copy_void_early(c);
	for (size_t i = 0; i < c->n; i++)
		cleanup_close(&c->fds[i]);
	host_copy_fini(&c->copy);
	int r = load(c, true);
	return r < 0 ? r : with_session(c, move);
}

static int run(struct copy *c)
{
	int r = c->load ? load(c, false) : 0;

	if (r == 0)
		r = with_session(c, move);
	if (c->unverified && (r == 0 ? !c->compared : r == -EBADMSG) && !c->stop)
		r = load_again(c);
	if (r == 0 && !c->in && c->op->memory)
		r = save_rest(c);
	return r;
}

static void *run_thread(void *arg)
{
	struct copy *c = arg;

	c->r = run(c);
	c->end_ns = clock_now_ns();
	pthread_mutex_lock(&c->lock);
	c->ended = true;
	c->stale = c->stale || c->r < 0;
	pthread_cond_broadcast(&c->changed);
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

/* ---- starting and joining ---- */

static struct copy *copy_new(struct op *op, bool in, struct brumate_error *err)
{
	const struct vault *h = op->vault;
	struct copy *c = calloc(1, sizeof(*c));

	if (c) {
		c->op = op;
		c->in = in;
		c->n = h->n_pieces;
		c->from = &h->copy;
		c->start_ns = c->moving_ns = clock_now_ns();
		pthread_mutex_init(&c->lock, NULL);
		condition_init(&c->changed);
		c->pieces = vault_device_pieces(h);
		c->fds = calloc(c->n + 1, sizeof(int));
	}
	if (!c || !c->pieces || !c->fds) {
		copy_free(c);
		brumate_fail(err, ENOMEM, "%m");
		return NULL;
	}
	for (size_t i = 0; i < c->n; i++) {
		c->fds[i] = in ? -1 : h->pieces[i].fd;
		if (in) /* where the job comes back on other GPUs */
			snprintf(c->pieces[i].gpu, sizeof(c->pieces[i].gpu), "%s",
				 gpu_set_target(&op->gpus, h->pieces[i].gpu));
	}
	c->total_bytes = host_copy_offset(c->pieces, c->n);
	return c;
}

static int start(struct op *op, struct copy *c, struct brumate_error *err)
{
	op->copy = c;
	int r = pthread_create(&c->thread, NULL, run_thread, c);
	if (r) {
		op->copy = NULL;
		copy_free(c);
		return brumate_fail(err, r, "thread: %m");
	}
	c->started = true;
	return 1; /* what it took is told where it is waited for */
}

static void record(struct op *op, const struct copy *c)
{
	double seconds = (double)(c->end_ns - c->moving_ns) / (double)NS_PER_S;

	if (c->load)
		progress_phase_at(&op->progress, "load", c->start_ns,
				  (double)(c->moving_ns - c->start_ns) / (double)NS_PER_S);
	progress_phase_at(&op->progress, c->in ? "data-in" : "data-out", c->moving_ns, seconds);
	op->data_bytes = 0;
	for (size_t i = 0; i < c->n; i++)
		op->data_bytes += c->pieces[i].len_bytes;
	op->data_seconds = seconds;
	op->spared = c->spared;
	op->disk_bytes = host_copy_disk_bytes(c->in ? c->from : &c->copy);
}

static struct copy *join(struct op *op)
{
	struct copy *c = op->copy;

	if (c->started)
		pthread_join(c->thread, NULL);
	c->started = false;
	progress_measure(&op->progress, NULL, NULL, 0);
	op->copy = NULL;
	if (c->r == 0)
		record(op, c);
	return c;
}

static int fail(struct copy *c, struct brumate_error *err)
{
	int r = c->r;

	if (err)
		*err = c->err;
	if (r == -ECANCELED && progress_check(&c->op->progress, err) == 0)
		brumate_fail(err, ECANCELED, "cancelled");
	copy_free(c);
	return r;
}

/* What becomes of what was copied. */
typedef int (*take_fn)(struct op *op, struct copy *c, struct brumate_error *err);

/* Takes @c, which has run. */
static int finish(struct copy *c, take_fn take, struct brumate_error *err)
{
	if (c->r < 0)
		return fail(c, err);
	int r = take(c->op, c, err);
	copy_free(c);
	return r;
}

static int wait_for_it(struct op *op, take_fn take, struct brumate_error *err)
{
	if (!op->copy)
		return 1;
	progress_measure(&op->progress, copy_measure, op, op->copy->total_bytes);
	int r = finish(join(op), take, err);
	return r < 0 ? r : 1;
}

/* In this thread, whoever cancels. Takes @c. */
static int do_it_now(struct copy *c, take_fn take, struct brumate_error *err)
{
	c->forced = true;
	c->r = run(c);
	return finish(c, take, err);
}

void step_undo_copy(struct op *op)
{
	if (!op->copy)
		return;
	op->copy->stop = true;
	copy_free(join(op));
}

/* ---- out ---- */

int step_copy_out(struct op *op, struct brumate_error *err)
{
	struct vault *h = op->vault;

	if (!h || !h->n_pieces || op->request->park)
		return 1;
	if (op->was_suspended && h->copied) {
		int r = op->memory ? regions_save(op, &h->copy, 0, err) : 0;

		return r < 0 ? r : 1;
	}
	struct copy *c = copy_new(op, false, err);
	if (!c)
		return -ENOMEM;
	/* A copy of a parked job is for the store alone. */
	c->update = !op->was_suspended && vault_take_baseline(h, &c->copy);
	op->keep_copy = op->keep_copy || (c->update && !op->live_base);
	return start(op, c, err);
}

/* The copy of a job that stays parked is for the store alone. */
static int take_copy(struct op *op, struct copy *c, struct brumate_error *err)
{
	struct vault *h = op->vault;

	if (op->was_suspended) {
		op->saved = c->copy;
		c->copy = HOST_COPY_EMPTY;
		return 0;
	}
	h->copy = c->copy;
	c->copy = HOST_COPY_EMPTY;
	c->update = false;
	int r = vault_guard(h, op->job, err);
	if (r < 0)
		return r;
	h->copied = true;
	return vault_save(h, op->job, err);
}

int step_data_out(struct op *op, struct brumate_error *err)
{
	return wait_for_it(op, take_copy, err);
}

int copy_away(struct op *op, struct brumate_error *err)
{
	struct copy *c = op->vault->n_pieces ? copy_new(op, false, err) : NULL;

	if (!c)
		return op->vault->n_pieces ? -ENOMEM : 0;
	int r = do_it_now(c, take_copy, err);
	if (r == 0)
		vault_drop_device(op->vault);
	return r;
}

/* ---- in ---- */

int step_copy_in(struct op *op, struct brumate_error *err)
{
	struct vault *h = op->vault;

	if (!h || !h->n_pieces || vault_has_device(h))
		return 1;
	if (!h->copied)
		return brumate_fail(err, EIO, "no copy of the job's device memory is there");
	struct copy *c = copy_new(op, true, err);
	return c ? start(op, c, err) : -ENOMEM;
}

int step_load(struct op *op, struct brumate_error *err)
{
	auto_free uint64_t *places = NULL;
	int r = regions_find(op, &places, err);

	if (r < 0 || !op->vault || !op->vault->n_pieces)
		return r < 0 ? r : 1;
	struct copy *c = copy_new(op, true, err);
	if (!c)
		return -ENOMEM;
	c->load = true;
	c->places = take_ptr(&places);
	c->from = &c->copy;
	return start(op, c, err);
}

static int take_device(struct op *op, struct copy *c, struct brumate_error *err)
{
	struct vault *h = op->vault;

	vault_drop_device(h);
	for (size_t i = 0; i < c->n; i++) {
		h->pieces[i].fd = take_fd(&c->fds[i]);
		memcpy(h->pieces[i].gpu, c->pieces[i].gpu, sizeof(h->pieces[i].gpu));
	}
	if (c->load) /* until it runs, the image is the second holder */
		return 0;
	int r = vault_guard(h, op->job, err);
	return r < 0 ? r : vault_save(h, op->job, err);
}

int step_data_in(struct op *op, struct brumate_error *err)
{
	return wait_for_it(op, take_device, err);
}

int copy_back(struct op *op, struct brumate_error *err)
{
	struct vault *h = op->vault;

	if (!h->n_pieces || !h->copied)
		return brumate_fail(err, EIO, "neither the job's device memory nor a copy is held");
	struct copy *c = copy_new(op, true, err);
	if (!c)
		return -ENOMEM;
	vault_drop_device(h); /* half of it is of no use */
	return do_it_now(c, take_device, err);
}
