// SPDX-License-Identifier: MIT
/*
 * GPUs that are open. Opening one takes a third of a second and costs device memory, so each is
 * opened when it is first wanted, and all are closed together when nobody has for a while. Segments
 * are pinned through any one of them, so none is closed while others stay.
 */
#include "broker/data.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <string.h>

struct gpu {
	uint8_t uuid[DEV_UUID_BYTES];
	struct dev_memory *memory; /* NULL: being opened */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static const struct dev_memory_ops *ops;
static struct gpu gpus[DEV_GPUS_MAX];
static size_t n_gpus;

void gpus_init(const struct dev_memory_ops *of_backend)
{
	pthread_mutex_lock(&lock);
	ops = of_backend;
	pthread_mutex_unlock(&lock);
}

const struct dev_memory_ops *gpus_ops(void)
{
	pthread_mutex_lock(&lock);
	const struct dev_memory_ops *found = ops;
	pthread_mutex_unlock(&lock);
	return found;
}

/* Under the lock. */
static struct gpu *find(const uint8_t *uuid)
{
	for (size_t i = 0; i < n_gpus; i++)
		if (!memcmp(gpus[i].uuid, uuid, sizeof(gpus[i].uuid)))
			return &gpus[i];
	return NULL;
}

/* Under the lock: gives up the place of one that could not be opened. */
static void forget(const uint8_t *uuid)
{
	struct gpu *g = find(uuid);

	*g = gpus[--n_gpus];
}

/* Under the lock, which is let go meanwhile. */
static int open_gpu(const uint8_t *uuid, struct brumate_error *err)
{
	struct dev_memory *memory;
	uint64_t start_ns = clock_now_ns();

	if (n_gpus == DEV_GPUS_MAX)
		return brumate_fail(err, EOVERFLOW, "more than %d GPUs", DEV_GPUS_MAX);
	memcpy(gpus[n_gpus].uuid, uuid, DEV_UUID_BYTES);
	gpus[n_gpus++].memory = NULL;
	pthread_mutex_unlock(&lock);
	int r = ops->open(&memory, uuid, err);
	pthread_mutex_lock(&lock);
	if (r < 0) {
		forget(uuid);
	} else {
		find(uuid)->memory = memory;
		pool_pinned_by(ops, memory);
		log_debug("a GPU is open, seconds=%.3f", clock_since_s(start_ns));
	}
	pthread_cond_broadcast(&changed);
	return r;
}

int gpus_get(struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
	     struct brumate_error *err)
{
	int r = 0;

	pthread_mutex_lock(&lock);
	for (;;) {
		struct gpu *g = find(uuid);

		if (g && g->memory) {
			*ret = g->memory;
			break;
		}
		if (g)
			pthread_cond_wait(&changed, &lock);
		else
			r = open_gpu(uuid, err);
		if (r < 0)
			break;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

struct dev_memory *gpus_any(void)
{
	struct dev_memory *found = NULL;

	pthread_mutex_lock(&lock);
	while (!found && n_gpus) {
		for (size_t i = 0; i < n_gpus && !found; i++)
			found = gpus[i].memory;
		if (!found)
			pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void gpus_close(void)
{
	pthread_mutex_lock(&lock);
	if (n_gpus)
		pool_unpin();
	while (n_gpus)
		ops->close(gpus[--n_gpus].memory);
	pthread_mutex_unlock(&lock);
}
