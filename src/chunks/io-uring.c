// SPDX-License-Identifier: MIT
/*
 * Requests carried out by io_uring. Whoever has a request submits it, one at a time; a thread of its
 * own waits for results. The lock also orders what both do to a request for those who watch (tsan
 * cannot see the kernel between them).
 */
#include "chunks/io-private.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <sched.h>
#include <signal.h>

struct io_uring_engine {
	struct io_uring ring;
	pthread_mutex_t lock; /* the submission side of the ring */
	pthread_t reaper;
	bool fixed; /* the buffers of the pool are registered */
};

static void prepare(struct io_uring_engine *e, struct io_uring_sqe *sqe, struct io_request *q)
{
	struct io_attempt a = io_attempt(q);
	bool fixed = e->fixed && q->data == q->memory;
	unsigned len = (unsigned)a.len_bytes;

	if (fixed && q->write)
		io_uring_prep_write_fixed(sqe, a.fd, a.data, len, a.offset, (int)q->index);
	else if (fixed)
		io_uring_prep_read_fixed(sqe, a.fd, a.data, len, a.offset, (int)q->index);
	else if (q->write)
		io_uring_prep_write(sqe, a.fd, a.data, len, a.offset);
	else
		io_uring_prep_read(sqe, a.fd, a.data, len, a.offset);
	io_uring_sqe_set_data(sqe, q);
}

/* The kernel may be short of memory, or have results waiting: both pass. @q NULL: end the reaper. */
void io_uring_engine_submit(struct io_uring_engine *e, struct io_request *q)
{
	int r;

	pthread_mutex_lock(&e->lock);
	/* Never NULL: the ring is as long as there are requests, and each is submitted at once. */
	struct io_uring_sqe *sqe = io_uring_get_sqe(&e->ring);
	assert(sqe);
	if (q)
		prepare(e, sqe, q);
	else
		io_uring_prep_nop(sqe);
	if (!q)
		io_uring_sqe_set_data(sqe, NULL);
	while ((r = io_uring_submit(&e->ring)) == -EAGAIN || r == -EBUSY || r == -EINTR)
		sched_yield();
	assert(r == 1);
	pthread_mutex_unlock(&e->lock);
}

static void *reap(void *arg)
{
	struct io_uring_engine *e = arg;

	for (;;) {
		struct io_uring_cqe *cqe;
		int r = io_uring_wait_cqe(&e->ring, &cqe);

		if (r == -EINTR || r == -EAGAIN)
			continue;
		assert(r == 0);
		struct io_request *q = io_uring_cqe_get_data(cqe);
		int result = cqe->res;
		io_uring_cqe_seen(&e->ring, cqe);
		if (!q)
			return NULL;
		pthread_mutex_lock(&e->lock);
		pthread_mutex_unlock(&e->lock);
		if (!io_step(q, result))
			io_dispatch(q);
	}
}

static int start_reaper(struct io_uring_engine *e)
{
	sigset_t all, was;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	int r = pthread_create(&e->reaper, NULL, reap, e);
	pthread_sigmask(SIG_SETMASK, &was, NULL);
	return -r;
}

int io_uring_engine_new(struct io_uring_engine **ret, unsigned depth, const struct iovec *buffers,
			unsigned n)
{
	struct io_uring_engine *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	int r = io_uring_queue_init(depth + 1, &e->ring, 0);
	if (r < 0) {
		free(e);
		return r;
	}
	/* Counts against RLIMIT_MEMLOCK for some; without it the kernel pins them for each request. */
	e->fixed = io_uring_register_buffers(&e->ring, buffers, n) == 0;
	pthread_mutex_init(&e->lock, NULL);
	r = start_reaper(e);
	if (r < 0) {
		io_uring_queue_exit(&e->ring);
		pthread_mutex_destroy(&e->lock);
		free(e);
		return r;
	}
	*ret = e;
	return 0;
}

void io_uring_engine_free(struct io_uring_engine *e)
{
	if (!e)
		return;
	io_uring_engine_submit(e, NULL);
	pthread_join(e->reaper, NULL);
	io_uring_queue_exit(&e->ring);
	pthread_mutex_destroy(&e->lock);
	free(e);
}
