// SPDX-License-Identifier: MIT
/* When GPUs are opened ahead of copies, and when they are closed for others. See keeping.h. */
#include "broker/keeping.h"
#include "base/clock.h"
#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

enum {
	PLENTY_PART = 16,	/* of a GPU's memory is to be free before it is opened */
	LITTLE_PART = 32,	/* as long as that is, it stays open */
	YIELD_LEAST_MS = 60000, /* they are not opened after somebody missed the memory */
	YIELD_MOST_MS = 3600000,
};

struct keeping {
	struct keeping_options o;
	pthread_mutex_t
		lock; /* of the rest; held while a GPU is opened, and while it is used to pin */
	bool keeps;
	uint8_t uuids[DEV_GPUS_MAX][DEV_UUID_BYTES];
	size_t n;
	uint64_t not_before_ns;
	unsigned yield_ms;
};

/* Under the lock. */
static bool has(const struct keeping *k, const uint8_t *uuid)
{
	for (size_t i = 0; k->keeps && i < k->n; i++)
		if (!memcmp(k->uuids[i], uuid, DEV_UUID_BYTES))
			return true;
	return false;
}

static bool has_all(const struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!has(k, uuids[i]))
			return false;
	return n > 0;
}

static const struct dev_gpu *find_gpu(const struct dev_gpu *gpus, size_t n, const uint8_t *uuid)
{
	char text[DEV_UUID_TEXT_BYTES];

	dev_uuid_format(text, uuid);
	for (size_t i = 0; i < n; i++)
		if (!strcmp(gpus[i].uuid, text))
			return &gpus[i];
	return NULL;
}

/* Whether each has a part of its memory free. What cannot be told is not. */
static bool have_free(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n,
		      unsigned part)
{
	const struct dev_backend *b;
	struct dev_gpu gpus[DEV_GPUS_MAX];
	size_t n_gpus;

	if (driver_wait(k->o.driver, &b, NULL, NULL) < 0 || !b->memory ||
	    dev_gpus(b, gpus, DEV_GPUS_MAX, &n_gpus, NULL) < 0)
		return false;
	for (size_t i = 0; i < n; i++) {
		const struct dev_gpu *gpu = find_gpu(gpus, n_gpus, uuids[i]);

		if (!gpu || gpu->partitioned || gpu->used_bytes > gpu->total_bytes ||
		    gpu->total_bytes - gpu->used_bytes < gpu->total_bytes / part)
			return false;
	}
	return true;
}

/* The next time it is longer until they are opened again. */
static void pause_opening(struct keeping *k)
{
	const bool again = clock_now_ns() < k->not_before_ns + k->yield_ms * NS_PER_MS;

	k->yield_ms = !again || !k->yield_ms		? YIELD_LEAST_MS
		      : k->yield_ms < YIELD_MOST_MS / 2 ? k->yield_ms * 2
							: YIELD_MOST_MS;
	k->not_before_ns = deadline_in_ms(k->yield_ms);
}

static void stop_keeping(struct keeping *k)
{
	k->keeps = false;
	k->n = 0;
	gpus_keep(k->o.gpus, false);
	eventfd_write(k->o.wake_fd, 1);
}

bool keeping_has(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	pthread_mutex_lock(&k->lock);
	bool found = has_all(k, uuids, n);
	pthread_mutex_unlock(&k->lock);
	return found;
}

/* Under the lock. */
static bool would_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	return n > 0 && !has_all(k, uuids, n) && deadline_left_ms(k->not_before_ns) == 0 &&
	       have_free(k, uuids, n, PLENTY_PART);
}

bool keeping_would_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	pthread_mutex_lock(&k->lock);
	bool would = would_open(k, uuids, n);
	pthread_mutex_unlock(&k->lock);
	return would;
}

/* Under the lock. The kernels of digests may have to be compiled; without them it goes on. */
static int open_one(struct keeping *k, const uint8_t uuid[static DEV_UUID_BYTES])
{
	const struct dev_memory_ops *ops = gpus_ops(k->o.gpus);
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct dev_digester *digester;
	struct dev_memory *memory;

	if (k->n == DEV_GPUS_MAX)
		return -EOVERFLOW;
	int r = gpus_get(k->o.gpus, &memory, uuid, &err);
	if (r < 0) {
		log_debug("a GPU is not opened ahead: %s", err.text);
		return r;
	}
	memcpy(k->uuids[k->n++], uuid, DEV_UUID_BYTES);
	if (k->o.digests && ops->digester_open(memory, CHUNK_BYTES_MAX, &digester, &err) == 0)
		ops->digester_close(digester);
	return 0;
}

bool keeping_open(struct keeping *k, const uint8_t (*uuids)[DEV_UUID_BYTES], size_t n)
{
	const struct dev_backend *b;
	int r = 0;

	pthread_mutex_lock(&k->lock);
	if (would_open(k, uuids, n) && driver_wait(k->o.driver, &b, NULL, NULL) == 0) {
		gpus_use(k->o.gpus, b->memory);
		gpus_keep(k->o.gpus, true);
		k->keeps = true;
		for (size_t i = 0; i < n && r == 0; i++)
			r = has(k, uuids[i]) ? 0 : open_one(k, uuids[i]);
		if (r < 0)
			pause_opening(k);
		if (!k->n)
			stop_keeping(k);
	}
	bool kept = has_all(k, uuids, n);
	pthread_mutex_unlock(&k->lock);
	return kept;
}

bool keeping_pin(struct keeping *k)
{
	bool more = false;

	pthread_mutex_lock(&k->lock);
	struct dev_memory *memory = k->keeps ? gpus_any(k->o.gpus) : NULL;
	if (memory) {
		int r = pool_pin_ready(gpus_pool(k->o.gpus), gpus_ops(k->o.gpus), memory);

		if (r < 0) /* the driver will not, and is not to be asked all the time */
			pause_opening(k);
		if (r < 0)
			stop_keeping(k);
		more = r > 0;
	}
	pthread_mutex_unlock(&k->lock);
	return more;
}

bool keeping_is_short(struct keeping *k)
{
	pthread_mutex_lock(&k->lock);
	bool is_short = k->keeps && !have_free(k, (const uint8_t(*)[DEV_UUID_BYTES])k->uuids, k->n,
					       LITTLE_PART);
	pthread_mutex_unlock(&k->lock);
	return is_short;
}

void keeping_let_go(struct keeping *k)
{
	pthread_mutex_lock(&k->lock);
	if (k->keeps)
		stop_keeping(k);
	pthread_mutex_unlock(&k->lock);
}

bool keeping_yield(struct keeping *k, uint32_t timeout_ms)
{
	pthread_mutex_lock(&k->lock);
	if (k->keeps) {
		log_info("device memory is short: GPUs that were open ahead of copies are closed");
		pause_opening(k);
		stop_keeping(k);
	}
	pthread_mutex_unlock(&k->lock);
	return k->o.close(k->o.arg, timeout_ms);
}

int keeping_new(struct keeping **ret, const struct keeping_options *o, struct brumate_error *err)
{
	struct keeping *k = calloc(1, sizeof(*k));

	if (!k)
		return brumate_fail(err, ENOMEM, "%m");
	k->o = *o;
	pthread_mutex_init(&k->lock, NULL);
	*ret = k;
	return 0;
}

void keeping_free(struct keeping *k)
{
	if (!k)
		return;
	keeping_let_go(k);
	pthread_mutex_destroy(&k->lock);
	free(k);
}
