// SPDX-License-Identifier: MIT
/*
 * Device memory that comes in without a host copy: the client fills slots of a ring with what it reads, and the
 * lanes copy them to their GPUs and give them back. So a restore needs no more host memory than the ring, and
 * nothing waits until all has been read.
 */
#pragma once

#include "broker/lane.h"

struct stream;

/** Takes a ring for the transfer from the pool. -EOPNOTSUPP: it has no room for one. */
int stream_new(struct stream **ret, struct transfer *t, struct brumate_error *err);
/** No lane runs any more. Accepts NULL. */
void stream_free(struct stream *s);

/** The ring's descriptor (owned) for the client, and how long it is. */
int stream_lease(struct stream *s, uint64_t *ret_bytes, struct brumate_error *err);
/** Takes from the client that @slot holds @bytes from @offset on. -EBADMSG: that cannot be. */
int stream_fill(struct transfer *t, unsigned slot, uint64_t offset, uint64_t bytes,
		struct brumate_error *err);
/** The slots that became free since it was last asked, as a mask. */
uint32_t stream_take_freed(struct transfer *t);

/** Copies what comes to the lane's pieces. @turns: it takes turns with the driver. */
int stream_copy(struct lane *l, bool turns, struct brumate_error *err);
