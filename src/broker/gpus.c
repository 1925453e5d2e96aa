// SPDX-License-Identifier: MIT
/* Opens GPUs when they are first needed, and closes all of them together. See gpus.h. */
#include "broker/gpus.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

struct gpu {
	uint8_t uuid[DEV_UUID_BYTES];
	struct dev_memory *memory; /* NULL: it is being opened */
};

struct gpus {
	struct pool *pool;
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t changed;
	const struct dev_memory_ops *ops;
	struct gpu items[DEV_GPUS_MAX];
	size_t n;
	bool kept;
	struct counted { /* per GPU; kept when GPUs are closed */
		uint8_t uuid[DEV_UUID_BYTES];
		struct broker_moved moved;
	} counted[DEV_GPUS_MAX];
	size_t n_counted;
};

int gpus_new(struct gpus **ret, struct pool *pool, struct brumate_error *err)
{
	struct gpus *g = calloc(1, sizeof(*g));

	if (!g)
		return brumate_fail(err, ENOMEM, "%m");
	g->pool = pool;
	pthread_mutex_init(&g->lock, NULL);
	pthread_cond_init(&g->changed, NULL);
	*ret = g;
	return 0;
}

void gpus_free(struct gpus *g)
{
	if (!g)
		return;
	pthread_mutex_destroy(&g->lock);
	pthread_cond_destroy(&g->changed);
	free(g);
}

void gpus_use(struct gpus *g, const struct dev_memory_ops *ops)
{
	pthread_mutex_lock(&g->lock);
	g->ops = ops;
	pthread_mutex_unlock(&g->lock);
}

const struct dev_memory_ops *gpus_ops(struct gpus *g)
{
	pthread_mutex_lock(&g->lock);
	const struct dev_memory_ops *ops = g->ops;
	pthread_mutex_unlock(&g->lock);
	return ops;
}

struct pool *gpus_pool(const struct gpus *g)
{
	return g->pool;
}

/* Under the lock. */
static struct counted *find_counted(struct gpus *g, const uint8_t *uuid)
{
	for (size_t i = 0; i < g->n_counted; i++)
		if (!memcmp(g->counted[i].uuid, uuid, sizeof(g->counted[i].uuid)))
			return &g->counted[i];
	return NULL;
}

void gpus_count(struct gpus *g, const uint8_t uuid[static DEV_UUID_BYTES],
		const struct broker_moved *more)
{
	pthread_mutex_lock(&g->lock);
	struct counted *c = find_counted(g, uuid);

	if (!c && g->n_counted < DEV_GPUS_MAX) {
		c = &g->counted[g->n_counted++];
		memcpy(c->uuid, uuid, sizeof(c->uuid));
	}
	if (c) {
		c->moved.out_bytes += more->out_bytes;
		c->moved.in_bytes += more->in_bytes;
		c->moved.written_bytes += more->written_bytes;
		c->moved.read_bytes += more->read_bytes;
	}
	pthread_mutex_unlock(&g->lock);
}

struct broker_moved gpus_moved(struct gpus *g, const uint8_t uuid[static DEV_UUID_BYTES])
{
	pthread_mutex_lock(&g->lock);
	const struct counted *c = find_counted(g, uuid);
	struct broker_moved moved = c ? c->moved : (struct broker_moved){ 0 };
	pthread_mutex_unlock(&g->lock);
	return moved;
}

/* Under the lock. */
static struct gpu *find_gpu(struct gpus *g, const uint8_t *uuid)
{
	for (size_t i = 0; i < g->n; i++)
		if (!memcmp(g->items[i].uuid, uuid, sizeof(g->items[i].uuid)))
			return &g->items[i];
	return NULL;
}

/* Under the lock: removes the entry of a GPU that could not be opened. */
static void forget_gpu(struct gpus *g, const uint8_t *uuid)
{
	struct gpu *gpu = find_gpu(g, uuid);

	*gpu = g->items[--g->n];
}

/* Under the lock, which is released in between. */
static int open_gpu(struct gpus *g, const uint8_t *uuid, struct brumate_error *err)
{
	struct dev_memory *memory;
	uint64_t start_ns = clock_now_ns();

	if (g->n == DEV_GPUS_MAX)
		return brumate_fail(err, EOVERFLOW, "more than %d GPUs", DEV_GPUS_MAX);
	memcpy(g->items[g->n].uuid, uuid, DEV_UUID_BYTES);
	g->items[g->n++].memory = NULL;
	pthread_mutex_unlock(&g->lock);
	int r = g->ops->open(&memory, uuid, err);
	pthread_mutex_lock(&g->lock);
	if (r < 0) {
		forget_gpu(g, uuid);
	} else {
		find_gpu(g, uuid)->memory = memory;
		pool_pinned_by(g->pool, g->ops, memory);
		log_debug("a GPU is open, seconds=%.3f", clock_since_s(start_ns));
	}
	pthread_cond_broadcast(&g->changed);
	return r;
}

int gpus_get(struct gpus *g, struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
	     struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&g->lock);
	while (r == 0) {
		struct gpu *gpu = find_gpu(g, uuid);

		if (gpu && gpu->memory) {
			*ret = gpu->memory;
			break;
		}
		if (gpu)
			pthread_cond_wait(&g->changed, &g->lock);
		else
			r = open_gpu(g, uuid, err);
	}
	pthread_mutex_unlock(&g->lock);
	return r;
}

struct dev_memory *gpus_any(struct gpus *g)
{
	struct dev_memory *found = NULL;

	pthread_mutex_lock(&g->lock);
	while (!found && g->n) {
		for (size_t i = 0; i < g->n && !found; i++)
			found = g->items[i].memory;
		if (!found)
			pthread_cond_wait(&g->changed, &g->lock);
	}
	pthread_mutex_unlock(&g->lock);
	return found;
}

void gpus_keep(struct gpus *g, bool keep)
{
	pthread_mutex_lock(&g->lock);
	g->kept = keep;
	pthread_mutex_unlock(&g->lock);
}

bool gpus_are_left(struct gpus *g)
{
	pthread_mutex_lock(&g->lock);
	bool left = g->n && !g->kept;
	pthread_mutex_unlock(&g->lock);
	return left;
}

bool gpus_close(struct gpus *g)
{
	pthread_mutex_lock(&g->lock);
	if (g->n && !g->kept)
		pool_unpin(g->pool);
	while (g->n && !g->kept)
		g->ops->close(g->items[--g->n].memory);
	bool closed = !g->n;
	pthread_mutex_unlock(&g->lock);
	return closed;
}
