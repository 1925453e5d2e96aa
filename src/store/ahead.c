// SPDX-License-Identifier: MIT
/* A ring of buffers between the thread that reads and its owner; see ahead.h. */
#include "store/ahead.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/thread.h"

struct ahead {
	int fd;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t moved;
	uint8_t *memory;
	ssize_t len[AHEAD_BUFFERS]; /* of each full buffer: bytes, 0 at the end, -errno */
	size_t n_filled, n_taken;   /* under lock, ever: buffer i is in place i % AHEAD_BUFFERS */
	bool lent;		    /* the owner still works on the last one taken */
	bool stop;
};

static uint8_t *buffer(struct ahead *a, size_t i)
{
	return a->memory + i % AHEAD_BUFFERS * AHEAD_BYTES;
}

/* Waits for a free buffer. False once nobody wants it any more. */
static bool await_room(struct ahead *a)
{
	pthread_mutex_lock(&a->lock);
	while (!a->stop && a->n_filled - a->n_taken + a->lent == AHEAD_BUFFERS)
		pthread_cond_wait(&a->moved, &a->lock);
	bool go_on = !a->stop;
	pthread_mutex_unlock(&a->lock);
	return go_on;
}

static void *read_ahead(void *arg)
{
	struct ahead *a = arg;
	uint64_t offset = 0;
	ssize_t n = 1;

	while (n > 0 && await_room(a)) {
		n = fd_read_at(a->fd, buffer(a, a->n_filled), AHEAD_BYTES, offset);
		offset += n > 0 ? (uint64_t)n : 0;
		pthread_mutex_lock(&a->lock);
		a->len[a->n_filled++ % AHEAD_BUFFERS] = n;
		pthread_cond_broadcast(&a->moved);
		pthread_mutex_unlock(&a->lock);
	}
	return NULL;
}

int ahead_start(struct ahead **ret, int fd)
{
	auto_free struct ahead *a = calloc(1, sizeof(*a));
	if (!a)
		return -ENOMEM;
	a->memory = malloc((size_t)AHEAD_BUFFERS * AHEAD_BYTES);
	if (!a->memory)
		return -ENOMEM;
	a->fd = fd;
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->moved, NULL);
	posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);

	int r = thread_start(&a->thread, read_ahead, a);
	if (r < 0) {
		free(a->memory);
		return r;
	}
	*ret = take_ptr(&a);
	return 0;
}

ssize_t ahead_next(struct ahead *a, const void **ret)
{
	pthread_mutex_lock(&a->lock);
	if (a->lent) {
		a->lent = false;
		pthread_cond_broadcast(&a->moved);
	}
	while (a->n_filled == a->n_taken)
		pthread_cond_wait(&a->moved, &a->lock);
	ssize_t n = a->len[a->n_taken % AHEAD_BUFFERS];
	*ret = buffer(a, a->n_taken);
	if (n > 0) { /* the end and an error stay, for whoever asks again */
		a->n_taken++;
		a->lent = true;
	}
	pthread_mutex_unlock(&a->lock);
	return n;
}

void ahead_free(struct ahead *a)
{
	if (!a)
		return;
	pthread_mutex_lock(&a->lock);
	a->stop = true;
	pthread_cond_broadcast(&a->moved);
	pthread_mutex_unlock(&a->lock);
	pthread_join(a->thread, NULL);
	pthread_cond_destroy(&a->moved);
	pthread_mutex_destroy(&a->lock);
	free(a->memory);
	free(a);
}
