// SPDX-License-Identifier: MIT
/*
 * GPUs that are open. Opening one takes a third of a second and costs device memory, so each is
 * opened when it is first wanted, and all are closed together when nobody has wanted any for a while and
 * nobody keeps them. Segments of the pool are pinned through any one of them, so none is closed while others stay.
 * Any thread may call.
 */
#pragma once

#include "broker/pool.h"

struct gpus;

/** @pool, borrowed, is told by which GPU it pins. Returns 0 or -ENOMEM. */
int gpus_new(struct gpus **ret, struct pool *pool, struct brumate_error *err);
/** All are closed. Accepts NULL. */
void gpus_free(struct gpus *g);

/** The operations of the backend, once the driver is there. */
void gpus_use(struct gpus *g, const struct dev_memory_ops *ops);
const struct dev_memory_ops *gpus_ops(struct gpus *g);
struct pool *gpus_pool(const struct gpus *g);

/** Bytes that went over the link of a GPU since the broker started, and how many of them went to a disk or came from one. */
struct gpus_moved {
	uint64_t out_bytes, in_bytes;	    /* out: to the host */
	uint64_t written_bytes, read_bytes; /* of out_bytes, to a disk; of in_bytes, from one */
};

/** Counts bytes that were copied. */
void gpus_count(struct gpus *g, const uint8_t uuid[static DEV_UUID_BYTES],
		const struct gpus_moved *more);
/** What was counted of one GPU. */
struct gpus_moved gpus_moved(struct gpus *g, const uint8_t uuid[static DEV_UUID_BYTES]);

/** Opens the GPU, or waits until another thread has. It stays open until gpus_close(). */
int gpus_get(struct gpus *g, struct dev_memory **ret, const uint8_t uuid[static DEV_UUID_BYTES],
	     struct brumate_error *err);
/** Some GPU that is open, or NULL; waits for those that are being opened if none is. */
struct dev_memory *gpus_any(struct gpus *g);
/** Says whether somebody uses GPUs beside sessions: what is open stays open meanwhile. */
void gpus_keep(struct gpus *g, bool keep);
/** Whether some are open that are not kept. */
bool gpus_are_left(struct gpus *g);
/** Closes all, unless they are kept; nothing of them is in use. Returns whether none is open. */
bool gpus_close(struct gpus *g);
