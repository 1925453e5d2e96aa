// SPDX-License-Identifier: MIT
/*
 * Open GPUs. Opening one takes a third of a second and costs device memory, so each is opened when it is first
 * needed, and all are closed together once none has been needed for a while and none is kept. They are closed
 * together because segments of the pool are pinned through any one of them. Any thread may call.
 */
#pragma once

#include "broker/pool.h"

struct gpus;

/** @pool is borrowed; it gets the GPU through which it pins. Returns 0 or -ENOMEM. */
int gpus_new(struct gpus **ret, struct pool *pool, struct brumate_error *err);
/** All are closed. Accepts NULL. */
void gpus_free(struct gpus *g);

/** Sets the operations of the backend, once the driver is loaded. */
void gpus_use(struct gpus *g, const struct dev_memory_ops *ops);
const struct dev_memory_ops *gpus_ops(struct gpus *g);
struct pool *gpus_pool(const struct gpus *g);

/** Counts bytes that were copied. */
void gpus_count(struct gpus *g, const uint8_t uuid[static DEV_UUID_BYTES],
		const struct broker_moved *more);
/** The counters of one GPU. */
struct broker_moved gpus_moved(struct gpus *g, const uint8_t uuid[static DEV_UUID_BYTES]);

/** Opens the GPU, or waits until another thread has opened it. It stays open until gpus_close(). */
int gpus_get(struct gpus *g, struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
	     struct brumate_error *err);
/** Any GPU that is open, or NULL; if none is open, waits for those that are being opened. */
struct dev_memory *gpus_any(struct gpus *g);
/** Sets whether open GPUs are to stay open although no session uses them. */
void gpus_keep(struct gpus *g, bool keep);
/** Whether some are open that need not be kept. */
bool gpus_are_left(struct gpus *g);
/** Closes all unless they are kept; none may be in use. Returns whether none is open. */
bool gpus_close(struct gpus *g);
