// SPDX-License-Identifier: MIT
/* Requests carried out by pread(2) and pwrite(2) in a few threads, which start when they are needed. */
#include "chunks/io-private.h"

#include <errno.h>
#include <signal.h>
#include <unistd.h>

enum { THREADS_MAX = 8 };

struct io_posix_engine {
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct io_request *first, **last;
	pthread_t threads[THREADS_MAX];
	unsigned n_threads, idle;
	bool stop;
};

ssize_t io_posix_attempt(struct io_request *q)
{
	struct io_attempt a = io_attempt(q);
	ssize_t n = q->write ? pwrite(a.fd, a.data, a.len_bytes, (off_t)a.offset)
			     : pread(a.fd, a.data, a.len_bytes, (off_t)a.offset);

	return n < 0 ? -errno : n;
}

static struct io_request *take(struct io_posix_engine *e)
{
	struct io_request *q;

	pthread_mutex_lock(&e->lock);
	e->idle++;
	while (!e->first && !e->stop)
		pthread_cond_wait(&e->work, &e->lock);
	e->idle--;
	q = e->first;
	if (q) {
		e->first = q->next;
		if (!e->first)
			e->last = &e->first;
	}
	pthread_mutex_unlock(&e->lock);
	return q;
}

static void *serve(void *arg)
{
	struct io_posix_engine *e = arg;
	struct io_request *q;

	while ((q = take(e)))
		while (!io_step(q, io_posix_attempt(q)))
			;
	return NULL;
}

/* Signals are for the program's own threads. Without a new thread those that are there do the work. */
static void start_thread(struct io_posix_engine *e)
{
	sigset_t all, was;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &was);
	if (pthread_create(&e->threads[e->n_threads], NULL, serve, e) == 0)
		e->n_threads++;
	pthread_sigmask(SIG_SETMASK, &was, NULL);
}

void io_posix_engine_submit(struct io_posix_engine *e, struct io_request *q)
{
	q->next = NULL;
	pthread_mutex_lock(&e->lock);
	*e->last = q;
	e->last = &q->next;
	if (!e->idle && e->n_threads < THREADS_MAX)
		start_thread(e);
	pthread_cond_signal(&e->work);
	pthread_mutex_unlock(&e->lock);
}

int io_posix_engine_new(struct io_posix_engine **ret)
{
	struct io_posix_engine *e = calloc(1, sizeof(*e));

	if (!e)
		return -ENOMEM;
	pthread_mutex_init(&e->lock, NULL);
	pthread_cond_init(&e->work, NULL);
	e->last = &e->first;
	start_thread(e);
	if (!e->n_threads) {
		io_posix_engine_free(e);
		return -EAGAIN;
	}
	*ret = e;
	return 0;
}

void io_posix_engine_free(struct io_posix_engine *e)
{
	if (!e)
		return;
	pthread_mutex_lock(&e->lock);
	e->stop = true;
	pthread_cond_broadcast(&e->work);
	pthread_mutex_unlock(&e->lock);
	for (unsigned i = 0; i < e->n_threads; i++)
		pthread_join(e->threads[i], NULL);
	pthread_cond_destroy(&e->work);
	pthread_mutex_destroy(&e->lock);
	free(e);
}
