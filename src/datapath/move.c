// SPDX-License-Identifier: MIT
/* Transfers of device memory, in a thread of their own. See move.h. */
#include "datapath/move.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "wire/transfer-packets.h"

enum { BROKER_TRIES = 3, GIVEN_MS = 100 };

/* Out: to a fresh copy (OUT), into the baseline (UPDATE), or to a copy for the sink and not for the vault (SINK). In:
 * from a host copy (IN), or from the source (LOAD). */
enum way { WAY_OUT, WAY_UPDATE, WAY_SINK, WAY_IN, WAY_LOAD };

/* VOID: an attempt failed, and what was reported of device memory on its way in is invalid. */
enum stage { STAGE_BEGUN, STAGE_MADE, STAGE_VOID, STAGE_ENDED, STAGE_ENDED_VOID };

/* How the digests of a checkpoint are compared on the way in. */
struct comparison {
	bool verify;	 /* each on the CPU */
	bool unverified; /* the loaded bytes are, if the GPU does not compare them */
	bool compared;	 /* by the GPU */
};

/* What the sink has of a copy that is being made. */
struct saving {
	uint64_t bytes; /* from the beginning */
	int r;		/* the result of that, with @err */
	struct brumate_error err;
};

/* Under the lock, for a map while the memory is on its way in. */
struct early {
	int *fds; /* of all pieces; owned */
	size_t n_filled;
	enum { EARLY_FREE, EARLY_USED, EARLY_NO_MORE } use;
};

/* Under the lock, for a start on the way out before all is parked. */
struct given {
	bool ahead; /* the fds arrive during the transfer */
	size_t n;   /* of the first pieces */
	bool not_parked; /* the vault does not have the pieces yet, so the sink cannot tell their owners */
};

/* Under the lock, for a snapshot on the way out. */
struct snapshot {
	size_t n_copied; /* of the first pieces */
	bool released;	 /* some were, so the copy cannot start again */
	enum {
		COPY_LATER,
		COPY_NOW,
		COPY_DRAINS
	} pace; /* NOW: a caller waits for it. DRAINS: the program runs */
};

struct move {
	struct datapath *d;
	enum way way;
	struct datapath_source source; /* for WAY_LOAD */
	bool forced;		       /* not cancellable */
	struct comparison digests;
	struct saving saved;
	struct transfer_spared spared;
	pthread_t thread;
	struct device_piece *pieces;
	size_t n;
	uint64_t total_bytes;
	int *fds;	       /* of device memory: borrowed on the way out, owned on the way in */
	struct host_copy copy; /* made here */
	struct host_copy given_up;    /* out: a baseline that has grown too large */
	const struct host_copy *from; /* in: the copy to read */
	atomic_uint_fast64_t done_bytes;
	atomic_bool stop;
	uint64_t start_ns, moving_ns, loaded_ns, end_ns;
	int r;
	struct brumate_error err;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum stage stage; /* under the lock */
	struct early early;
	struct given given;
	struct snapshot snapshot;
};

static bool is_out(const struct move *t)
{
	return t->way <= WAY_SINK;
}

static void drop_early(struct move *t)
{
	for (size_t i = 0; t->early.fds && i < t->n; i++)
		cleanup_close(&t->early.fds[i]);
	free(take_ptr(&t->early.fds));
	t->early.n_filled = 0;
}

static void move_free(struct move *t)
{
	if (!t)
		return;
	drop_early(t);
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->changed);
	for (size_t i = 0; !is_out(t) && t->fds && i < t->n; i++)
		cleanup_close(&t->fds[i]);
	free(t->fds);
	free(t->pieces);
	if (t->way == WAY_UPDATE) /* the baseline is only partly up to date */
		vault_give_up_baseline(t->d->vault, &t->copy);
	host_copy_fini(&t->copy);
	free(t);
}

bool move_is_on(const struct datapath *d)
{
	return d->move;
}

uint64_t move_total_bytes(const struct datapath *d)
{
	return d->move ? d->move->total_bytes : 0;
}

static uint64_t done_bytes(void *arg)
{
	const struct move *t = arg;

	return t->done_bytes;
}

bool move_measure(struct datapath *d)
{
	if (!d->move)
		return false;
	progress_measure(d->progress, done_bytes, d->move, d->move->total_bytes);
	return true;
}

/* ---- early map ---- */

/* The caller holds the lock. */
static void take_early(struct move *t, const int *fds)
{
	t->early.fds = calloc(t->n, sizeof(int));
	for (size_t i = 0; t->early.fds && i < t->n; i++)
		t->early.fds[i] = -1;
	for (size_t i = 0; t->early.fds && i < t->n; i++)
		if ((t->early.fds[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, 0)) < 0)
			drop_early(t); /* then the pieces are mapped at the end */
	if (!t->early.fds)
		t->early.use = t->early.use == EARLY_FREE ? EARLY_NO_MORE : t->early.use;
}

static void note_filled(void *arg, const int *fds, size_t n_filled)
{
	struct move *t = arg;

	pthread_mutex_lock(&t->lock);
	if (t->stage == STAGE_BEGUN)
		t->stage = STAGE_MADE;
	if (!t->early.fds && t->early.use != EARLY_NO_MORE)
		take_early(t, fds);
	t->early.n_filled = t->early.fds ? n_filled : 0;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

/* After a failed attempt: invalidates what was reported, and waits until its user has released it. */
static void void_early(struct move *t)
{
	pthread_mutex_lock(&t->lock);
	t->stage = STAGE_VOID;
	pthread_cond_broadcast(&t->changed);
	while (t->early.use == EARLY_USED)
		pthread_cond_wait(&t->changed, &t->lock);
	t->early.use = EARLY_NO_MORE;
	drop_early(t);
	pthread_mutex_unlock(&t->lock);
}

bool move_begin_early(struct datapath *d)
{
	struct move *t = d->move;

	if (!t || is_out(t))
		return false;
	pthread_mutex_lock(&t->lock);
	bool may = t->early.use == EARLY_FREE;
	if (may)
		t->early.use = EARLY_USED;
	pthread_mutex_unlock(&t->lock);
	return may && move_measure(d);
}

size_t move_wait_filled(struct datapath *d, size_t n, const int **ret_fds)
{
	struct move *t = d->move;

	pthread_mutex_lock(&t->lock);
	while (t->stage < STAGE_VOID && t->early.n_filled <= n)
		pthread_cond_wait(&t->changed, &t->lock);
	size_t filled = t->stage < STAGE_VOID ? t->early.n_filled : 0;
	*ret_fds = t->early.fds;
	pthread_mutex_unlock(&t->lock);
	return filled;
}

bool move_is_void(struct datapath *d)
{
	pthread_mutex_lock(&d->move->lock);
	bool is_void = d->move->stage == STAGE_VOID || d->move->stage == STAGE_ENDED_VOID;
	pthread_mutex_unlock(&d->move->lock);
	return is_void;
}

void move_end_early(struct datapath *d)
{
	struct move *t = d->move;

	pthread_mutex_lock(&t->lock);
	t->early.use = EARLY_NO_MORE;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

void move_wait_made(struct datapath *d, uint32_t timeout_ms)
{
	struct timespec until = deadline_timespec(deadline_in_ms(timeout_ms));
	struct move *t = d->move;
	int r = 0;

	pthread_mutex_lock(&t->lock);
	while (r == 0 && t->stage == STAGE_BEGUN)
		r = pthread_cond_timedwait(&t->changed, &t->lock, &until);
	pthread_mutex_unlock(&t->lock);
}

/* ---- ahead ---- */

/* Waits only briefly, so that the caller notices if the broker has failed. */
static size_t wait_given(void *arg, size_t n)
{
	struct timespec until = deadline_timespec(deadline_in_ms(GIVEN_MS));
	struct move *t = arg;
	int r = 0;

	pthread_mutex_lock(&t->lock);
	while (r == 0 && !t->stop && t->given.n <= n)
		r = pthread_cond_timedwait(&t->changed, &t->lock, &until);
	size_t given = t->given.n;
	pthread_mutex_unlock(&t->lock);
	return given;
}

void move_give(struct datapath *d, const size_t *at, const int *fds, size_t n)
{
	struct move *t = d->move;

	if (!t || !t->given.ahead)
		return;
	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i < n; i++)
		t->fds[at[i]] = fds[i];
	while (t->given.n < t->n && t->fds[t->given.n] >= 0)
		t->given.n++;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

static void note_parked(struct move *t)
{
	pthread_mutex_lock(&t->lock);
	t->given.not_parked = false;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

static int wait_parked(struct move *t)
{
	pthread_mutex_lock(&t->lock);
	while (t->given.not_parked && !t->stop)
		pthread_cond_wait(&t->changed, &t->lock);
	bool parked = !t->given.not_parked;
	pthread_mutex_unlock(&t->lock);
	return parked ? 0 : brumate_fail(&t->err, ECANCELED, "copy: cancelled");
}

/* ---- snapshot ---- */

static void want_now(struct move *t, bool drains)
{
	pthread_mutex_lock(&t->lock);
	if (drains)
		t->snapshot.pace = COPY_DRAINS;
	else if (t->snapshot.pace == COPY_LATER)
		t->snapshot.pace = COPY_NOW;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

/* Delays the copies, which would slow down the driver's own, and so the program. */
static void wait_wanted(struct move *t)
{
	pthread_mutex_lock(&t->lock);
	while (t->snapshot.pace == COPY_LATER)
		pthread_cond_wait(&t->changed, &t->lock);
	pthread_mutex_unlock(&t->lock);
}

/* The broker unmaps behind its copies, and has unmapped all only once it reports the end: until then the last one counts as
 * not copied, as it is not free. */
static void note_copied(struct move *t, uint64_t end_bytes, bool has_ended)
{
	uint64_t offset = 0;

	pthread_mutex_lock(&t->lock);
	for (size_t i = 0; i + !has_ended < t->n; i++) {
		if (offset + t->pieces[i].len_bytes > end_bytes)
			break;
		t->snapshot.n_copied = i + 1 > t->snapshot.n_copied ? i + 1 : t->snapshot.n_copied;
		offset = transfer_next(offset, t->pieces[i].len_bytes);
	}
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
}

size_t move_wait_copied(struct datapath *d, size_t n, uint32_t timeout_ms)
{
	struct timespec until = deadline_timespec(deadline_in_ms(timeout_ms));
	struct move *t = d->move;
	int r = 0;

	want_now(t, false);
	pthread_mutex_lock(&t->lock);
	while (r == 0 && t->stage < STAGE_ENDED && t->snapshot.n_copied <= n)
		r = pthread_cond_timedwait(&t->changed, &t->lock, &until);
	t->snapshot.released = t->snapshot.released || t->snapshot.n_copied;
	size_t copied = t->stage < STAGE_ENDED ? t->snapshot.n_copied : t->n;
	pthread_mutex_unlock(&t->lock);
	return copied;
}

void move_drain(struct datapath *d)
{
	want_now(d->move, true);
}

/* Whether the copy can start again from the first byte; if so, nothing counts as copied any more. */
static bool begin_anew(struct move *t)
{
	pthread_mutex_lock(&t->lock);
	bool may = !t->snapshot.released;
	t->snapshot.n_copied = may ? 0 : t->snapshot.n_copied;
	pthread_mutex_unlock(&t->lock);
	if (!may)
		brumate_hint(&t->err, "the job runs; make another checkpoint");
	return may;
}

static bool may_save(struct move *t)
{
	pthread_mutex_lock(&t->lock);
	bool may = !t->given.not_parked &&
		   (t->d->sink.while_copying || t->snapshot.pace == COPY_DRAINS);
	pthread_mutex_unlock(&t->lock);
	return may;
}

/* ---- in the thread ---- */

static int check_going_on(void *arg, uint64_t bytes)
{
	struct move *t = arg;

	t->done_bytes = bytes;
	if (t->stop)
		return -ECANCELED;
	return t->forced ? 0 : progress_check(t->d->progress, NULL);
}

static bool is_cancelled(void *arg)
{
	struct move *t = arg;

	return t->stop || progress_is_over(t->d->progress);
}

/* Hands complete segments to the sink while others are still being copied. */
static void save_whole(void *arg, const struct host_copy *copy, size_t n_whole,
		       const struct digest *digests)
{
	struct move *t = arg;
	const struct datapath_sink *sink = &t->d->sink;
	uint64_t end = n_whole * copy->segment_bytes;

	end = end < copy->total_bytes ? end : copy->total_bytes;
	note_copied(t, end, false);
	if (t->saved.r < 0 || end <= t->saved.bytes || !may_save(t))
		return;
	t->saved.r = sink->save(sink->arg, copy, t->saved.bytes, end, digests, &t->saved.err);
	t->saved.bytes = end;
}

/* Hands the rest of a copy to the sink, from @start on. */
static int save_rest(const struct datapath_sink *sink, const struct host_copy *copy, uint64_t start,
		     struct brumate_error *err)
{
	bool known = copy->digests && digest_table_is_whole(copy->digests);

	return sink->save(sink->arg, copy, start, copy->total_bytes,
			  known ? digest_table_digests(copy->digests) : NULL, err);
}

static int move(struct move *t, struct transfer_client *c, struct brumate_error *err)
{
	const struct datapath_sink *sink = &t->d->sink;
	const struct transfer_request request = {
		.pieces = t->pieces,
		.n = t->n,
		.digests = true,
		.given = t->given.ahead ? wait_given : NULL,
		.progress = check_going_on,
		.whole = sink->save && (sink->while_copying || t->d->copy != DATAPATH_COPY_FIRST)
				 ? save_whole
				 : NULL,
		.filled = note_filled,
		.arg = t,
	};

	wait_wanted(t);
	if (t->stop)
		return brumate_fail(err, ECANCELED, "copy: cancelled");
	t->moving_ns = clock_now_ns();
	if (!is_out(t))
		return transfer_client_in(c, &request, t->from, t->fds, &t->digests.compared, err);
	return t->way == WAY_UPDATE
		       ? transfer_client_update(c, &request, t->fds, &t->copy, &t->spared, err)
		       : transfer_client_out(c, &request, t->fds, &t->copy, &t->spared, err);
}

/* Uses a broker connection of its own: the operation's is busy with calls to the driver. */
static int with_session(struct move *t, int (*fn)(struct move *t, struct transfer_client *c,
						  struct brumate_error *err))
{
	int r = -EPIPE;

	for (int tries = 0; r == -EPIPE && tries < BROKER_TRIES && !t->stop; tries++) {
		auto_(broker_client_close) struct broker_client broker = BROKER_CLIENT_EMPTY;
		auto_(transfer_client_close) struct transfer_client *c = NULL;

		if (tries && t->early.fds)
			void_early(t);
		if (tries && !begin_anew(t))
			break;
		t->err = BRUMATE_ERROR_NONE;
		r = broker_client_open(&broker, &t->d->target->gpu_kind, &t->err);
		if (r == 0)
			r = transfer_client_open(&c, &broker, &t->err);
		if (r == 0)
			r = fn(t, c, &t->err);
	}
	return r;
}

/* ---- from the source to the GPU, through the broker's ring ---- */

struct stream {
	struct move *t;
	struct transfer_client *client;
	struct feed *feed;
	pthread_t thread;
	bool started;
	int r; /* of the thread, with @err */
	struct brumate_error err;
};

static void *feed_thread(void *arg)
{
	struct stream *s = arg;
	struct move *t = s->t;

	s->r = t->source.feed(t->source.arg, s->feed, is_cancelled, t, &s->err);
	if (s->r == 0)
		s->r = feed_finish(s->feed);
	t->loaded_ns = clock_now_ns();
	if (s->r < 0)
		transfer_client_abort(s->client);
	return NULL;
}

static int begin_feeding(void *arg, int fd, size_t n_slots, struct brumate_error *err)
{
	struct stream *s = arg;
	int r = feed_begin(s->feed, s->client, fd, n_slots, err);

	if (r < 0)
		return r;
	s->t->moving_ns = clock_now_ns();
	r = thread_start(&s->thread, feed_thread, s);
	s->started = r == 0;
	return r < 0 ? brumate_fail(err, -r, "thread: %m") : 0;
}

static void note_freed(void *arg, uint32_t slots)
{
	const struct stream *s = arg;

	feed_freed(s->feed, slots);
}

static int plan_feed(struct move *t, struct feed *feed, struct digest_table *digests,
		     struct brumate_error *err)
{
	int r = t->source.plan(t->source.arg, feed, digests, t->digests.verify, err);

	if (r < 0)
		return r;
	t->digests.unverified = r > 0;
	r = feed_plan(feed);
	return r < 0 ? brumate_fail(err, r == -ENODATA ? EBADMSG : -r, "device memory: %m") : 0;
}

/* Returns the failure of the session if it came first, else the failure that ended the feeding. */
static int end_stream(struct stream *s, int r, struct brumate_error *err)
{
	feed_stop(s->feed);
	if (s->started)
		pthread_join(s->thread, NULL);
	if (s->r == -ECANCELED && is_cancelled(s->t))
		return brumate_fail(err, ECANCELED, "copy: cancelled");
	if (s->r == 0 || s->r == -ECANCELED)
		return r;
	s->t->digests.unverified = false;
	*err = s->err;
	return s->r;
}

static int stream(struct move *t, struct transfer_client *c, struct brumate_error *err)
{
	auto_(digest_table_free) struct digest_table *digests = NULL;
	auto_(feed_free) struct feed *feed = NULL;
	const struct transfer_request request = {
		.pieces = t->pieces,
		.n = t->n,
		.digests = true,
		.progress = check_going_on,
		.filled = note_filled,
		.arg = t,
	};

	if (feed_new(&feed, t->pieces, t->n) < 0)
		return brumate_fail(err, ENOMEM, "%m");
	if (digest_table_new(&digests, t->total_bytes) < 0)
		digests = NULL; /* then the source compares them */
	int r = plan_feed(t, feed, digests, err);
	if (r < 0)
		return r;
	struct stream s = { .t = t, .client = c, .feed = feed };
	const struct transfer_stream how = {
		.digests = digests,
		.begin = begin_feeding,
		.freed = note_freed,
		.arg = &s,
	};
	r = transfer_client_stream(c, &request, &how, t->fds, &t->digests.compared, err);
	return end_stream(&s, r, err);
}

/* ---- in the thread, again ---- */

/* If the GPU found a wrong digest, or could not compare them, reads everything again and compares each digest on the
 * CPU. That finds the damaged chunk if the image is damaged. */
static int load_again(struct move *t)
{
	log_warn("device memory is read again from the checkpoint: job=%s reason=\"%s\"",
		 t->d->target->id, t->err.code ? t->err.text : "its digests were not compared");
	if (t->early.fds)
		void_early(t);
	for (size_t i = 0; i < t->n; i++)
		cleanup_close(&t->fds[i]);
	t->digests.verify = true;
	return with_session(t, stream);
}

/* Memory is too short to bring the baseline up to date, and nothing of it was written: a copy of its own may lie on a
 * disk in part. */
static int copy_anew(struct move *t)
{
	log_info("the kept host copy is not used: job=%s reason=\"%s\"", t->d->target->id,
		 t->err.text);
	t->given_up = t->copy;
	t->copy = HOST_COPY_EMPTY;
	t->way = WAY_OUT;
	t->err = BRUMATE_ERROR_NONE;
	return with_session(t, move);
}

static int run_transfer(struct move *t)
{
	int r = with_session(t, t->way == WAY_LOAD ? stream : move);

	if (r == -ENOSPC && t->way == WAY_UPDATE && !t->stop)
		r = copy_anew(t);

	if (t->digests.unverified && (r == 0 ? !t->digests.compared : r == -EBADMSG) && !t->stop)
		r = load_again(t);
	if (r == 0)
		note_copied(t, t->total_bytes, true);
	if (r < 0 || !is_out(t) || !t->d->sink.save)
		return r;
	if ((r = wait_parked(t)) < 0)
		return r;
	if (t->saved.r == 0)
		return save_rest(&t->d->sink, &t->copy, t->saved.bytes, &t->err);
	t->err = t->saved.err;
	return t->saved.r;
}

static void *move_thread(void *arg)
{
	struct move *t = arg;

	t->r = run_transfer(t);
	t->end_ns = clock_now_ns();
	pthread_mutex_lock(&t->lock);
	t->stage = t->stage == STAGE_VOID || t->r < 0 ? STAGE_ENDED_VOID : STAGE_ENDED;
	pthread_cond_broadcast(&t->changed);
	pthread_mutex_unlock(&t->lock);
	return NULL;
}

/* ---- starting and joining ---- */

/* Takes @pieces, NULL if there was no memory for them. No piece has an fd yet. */
static int move_new_of(struct move **ret, struct datapath *d, enum way way,
		       struct device_piece *pieces, size_t n, struct brumate_error *err)
{
	struct move *t = calloc(1, sizeof(*t));

	if (!t) {
		free(pieces);
		return brumate_fail(err, ENOMEM, "%m");
	}
	t->d = d;
	t->way = way;
	t->n = n;
	t->from = &d->vault->copy;
	t->start_ns = t->moving_ns = clock_now_ns();
	t->snapshot.pace = COPY_NOW;
	pthread_mutex_init(&t->lock, NULL);
	condition_init(&t->changed);
	t->pieces = pieces;
	t->fds = calloc(t->n + 1, sizeof(int));
	for (size_t i = 0; t->fds && i < t->n; i++)
		t->fds[i] = -1;
	if (!t->pieces || !t->fds) {
		move_free(t);
		return brumate_fail(err, ENOMEM, "%m");
	}
	t->total_bytes = host_copy_offset(t->pieces, t->n);
	*ret = t;
	return 0;
}

static int move_new(struct move **ret, struct datapath *d, enum way way, struct brumate_error *err)
{
	const struct vault *v = d->vault;
	int r = move_new_of(ret, d, way, vault_device_pieces(v), v->n_pieces, err);

	for (size_t i = 0; r == 0 && is_out(*ret) && i < v->n_pieces; i++)
		(*ret)->fds[i] = v->pieces[i].fd;
	return r;
}

/* Takes @t. Its result comes from move_wait(). */
static int start_thread(struct datapath *d, struct move *t, struct brumate_error *err)
{
	int r;

	d->move = t;
	if ((r = thread_start(&t->thread, move_thread, t)) < 0) {
		d->move = NULL;
		move_free(t);
		return brumate_fail(err, -r, "thread: %m");
	}
	return 0;
}

static void record_sums(struct datapath *d, const struct move *t)
{
	double seconds = (double)(t->end_ns - t->moving_ns) / (double)NS_PER_S;
	double load_seconds = (double)(t->loaded_ns - t->start_ns) / (double)NS_PER_S;

	if (t->way == WAY_LOAD)
		progress_phase_at(d->progress, "load", t->start_ns, load_seconds);
	progress_phase_at(d->progress, is_out(t) ? "data-out" : "data-in", t->moving_ns, seconds);
	d->sums = (struct datapath_sums){
		.disk_bytes = host_copy_disk_bytes(is_out(t) ? &t->copy : t->from),
		.seconds = seconds,
		.spared = t->spared,
	};
	for (size_t i = 0; i < t->n; i++)
		d->sums.bytes += t->pieces[i].len_bytes;
}

/* Passes the move to the caller. */
static struct move *join_transfer(struct datapath *d)
{
	struct move *t = d->move;

	want_now(t, false);
	pthread_join(t->thread, NULL);
	if (t->given_up.n_segments)
		vault_give_up_baseline(d->vault, &t->given_up);
	progress_measure(d->progress, NULL, NULL, 0);
	d->move = NULL;
	if (t->r == 0)
		record_sums(d, t);
	return t;
}

static int explain_failure(struct move *t, struct brumate_error *err)
{
	if (err)
		*err = t->err;
	if (t->r == -ECANCELED && progress_check(t->d->progress, err) == 0)
		brumate_fail(err, ECANCELED, "cancelled");
	return t->r;
}

/* Puts the new copy into the vault. A copy of memory that stays parked is for the sink alone. */
static int take_copy(struct datapath *d, struct move *t, struct brumate_error *err)
{
	struct vault *v = d->vault;

	if (t->way == WAY_SINK) {
		d->saved = t->copy;
		t->copy = HOST_COPY_EMPTY;
		return 0;
	}
	v->copy = t->copy;
	t->copy = HOST_COPY_EMPTY;
	if (d->copy != DATAPATH_COPY_FIRST) {
		v->copied = true; /* never written to the table, since the program runs */
		return 0;
	}
	int r = vault_guard(v, d->target, err);
	if (r < 0)
		return r;
	v->copied = true;
	return vault_save(v, d->target, err);
}

/* Puts the filled device memory into the vault. */
static int take_device(struct datapath *d, struct move *t, struct brumate_error *err)
{
	struct vault *v = d->vault;

	vault_drop_device(v);
	for (size_t i = 0; i < t->n; i++) {
		v->pieces[i].fd = take_fd(&t->fds[i]);
		memcpy(v->pieces[i].gpu, t->pieces[i].gpu, sizeof(v->pieces[i].gpu));
	}
	if (t->way == WAY_LOAD) /* until the program runs, the image serves as the second holder */
		return 0;
	int r = vault_guard(v, d->target, err);
	return r < 0 ? r : vault_save(v, d->target, err);
}

/* Takes @t, which has run. */
static int finish_transfer(struct datapath *d, struct move *t, struct brumate_error *err)
{
	int r = t->r < 0    ? explain_failure(t, err)
		: is_out(t) ? take_copy(d, t, err)
			    : take_device(d, t, err);

	move_free(t);
	return r;
}

int move_wait(struct datapath *d, struct brumate_error *err)
{
	if (!move_measure(d))
		return 0;
	return finish_transfer(d, join_transfer(d), err);
}

/* Takes @t and runs it in this thread, ignoring cancellation. */
static int run_now(struct datapath *d, struct move *t, struct brumate_error *err)
{
	t->forced = true;
	t->r = run_transfer(t);
	return finish_transfer(d, t, err);
}

void move_stop(struct datapath *d)
{
	if (!d->move)
		return;
	d->move->stop = true;
	move_free(join_transfer(d));
}

/* ---- out ---- */

void move_start_ahead(struct datapath *d)
{
	struct brumate_error err;
	struct move *t;
	const size_t n = agents_count_pieces(d, d->n_agents);

	if (!n || vault_baseline_bytes(d->vault))
		return;
	struct device_piece *pieces = calloc(n, sizeof(*pieces));
	size_t k = 0;
	for (size_t i = 0; pieces && i < d->n_agents; i++)
		for (size_t j = 0; j < d->agents[i].n_pieces; j++, k++) {
			pieces[k].len_bytes = d->agents[i].pieces[j].len_bytes;
			dev_uuid_format(pieces[k].gpu, d->agents[i].pieces[j].gpu);
		}
	if (move_new_of(&t, d, WAY_OUT, pieces, n, &err) < 0)
		return;
	t->given.ahead = t->given.not_parked = true;
	start_thread(d, t, &err);
}

int move_start_out(struct datapath *d, struct brumate_error *err)
{
	struct move *t;

	if (d->move) {
		note_parked(d->move);
		return 0;
	}
	int r = move_new(&t, d, WAY_OUT, err);
	if (r < 0)
		return r;
	const bool spare = d->vault->baseline.spare;
	if (vault_take_baseline(d->vault, &t->copy)) {
		t->way = WAY_UPDATE;
		d->keep.copy = d->keep.copy || !(d->keep.live || spare);
		d->keep.spare = d->keep.spare || spare;
	}
	t->snapshot.pace = d->copy == DATAPATH_COPY_AFTER ? COPY_LATER : COPY_NOW;
	return start_thread(d, t, err);
}

int move_start_saving(struct datapath *d, struct brumate_error *err)
{
	struct move *t;
	int r;

	if (d->vault->copied)
		return d->sink.save ? save_rest(&d->sink, &d->vault->copy, 0, err) : 0;
	if ((r = move_new(&t, d, WAY_SINK, err)) < 0)
		return r;
	return start_thread(d, t, err);
}

int move_away(struct datapath *d, struct brumate_error *err)
{
	struct move *t;
	int r;

	if (!d->vault->n_pieces)
		return 0;
	if ((r = move_new(&t, d, WAY_OUT, err)) < 0 || (r = run_now(d, t, err)) < 0)
		return r;
	vault_drop_device(d->vault);
	return 0;
}

/* ---- in ---- */

/* The GPU that gets what was on GPU @uuid. */
static const char *find_target(const struct datapath *d, const char *uuid)
{
	for (size_t i = 0; i < d->n_pairs; i++)
		if (!strcmp(d->pairs[i].from, uuid))
			return d->pairs[i].to;
	return uuid;
}

static int move_new_in(struct move **ret, struct datapath *d, enum way way,
		       struct brumate_error *err)
{
	int r = move_new(ret, d, way, err);

	for (size_t i = 0; r == 0 && i < (*ret)->n; i++)
		snprintf((*ret)->pieces[i].gpu, sizeof((*ret)->pieces[i].gpu), "%s",
			 find_target(d, d->vault->pieces[i].gpu));
	return r;
}

int move_start_in(struct datapath *d, const struct datapath_source *source,
		  struct brumate_error *err)
{
	struct move *t;

	if (!source && !d->vault->copied)
		return brumate_fail(err, EIO, "there is no copy of the job's device memory");
	int r = move_new_in(&t, d, source ? WAY_LOAD : WAY_IN, err);
	if (r < 0)
		return r;
	if (source) {
		t->source = *source;
		t->from = &t->copy; /* there is none */
	}
	return start_thread(d, t, err);
}

int move_back(struct datapath *d, struct brumate_error *err)
{
	struct vault *v = d->vault;
	struct move *t;

	if (!v->n_pieces || !v->copied)
		return brumate_fail(err, ENODATA,
				    "neither the job's device memory nor a copy is held");
	int r = move_new_in(&t, d, WAY_IN, err);
	if (r < 0)
		return r;
	vault_drop_device(v); /* incomplete device memory is useless */
	return run_now(d, t, err);
}
