// SPDX-License-Identifier: MIT
/* A job's pieces of device memory as regions of a checkpoint, and back. A piece that lies in several
 * segments of a host copy is several regions of one id. */
#pragma once

#include "client/transfer.h"
#include "engine/op.h"

/** Hands all pieces, whose host copy is @copy, to the checkpoint being written (op->memory), but for what is
 * before @start in the copy. */
int regions_save(struct op *op, const struct host_copy *copy, uint64_t start,
		 struct brumate_error *err);

/** What of them is in the copy, which is in memory so far, from @start to before @end: both where a segment
 * begins, or the copy ends. @digests of all its chunks, or NULL. */
int regions_save_part(struct op *op, const struct host_copy *copy, uint64_t start, uint64_t end,
		      const struct digest *digests, struct brumate_error *err);

/** Makes what is held of the image's regions: pieces without fds, of processes as their own namespace
 * numbers them. Nothing held where the image has none. @ret_places (owned): where each region of the image
 * is in their host copy; UINT64_MAX: it is no device memory. -EBADMSG. */
int regions_find(struct op *op, uint64_t **ret_places, struct brumate_error *err);

/** How to load. */
struct regions_load {
	const uint64_t *places; /* regions_find()'s */
	bool as_is;		/* memory may hold anything; else zeros need not be written */
	bool verify; /* compare every digest here, whatever the GPU will do */
	bool (*cancelled)(void *arg);
	void *arg;
};

/** Reads all pieces from the image into @copy. Returns 1 if the digests of what was read are yet to be compared,
 * by transfer_client_in(), where they can be; 0 if that was done. What is zeros for sure is then left out. */
int regions_load(struct op *op, const struct host_copy *copy, const struct regions_load *how,
		 struct brumate_error *err);

/** Gives the pieces that regions_find() made to the restored processes, and compares them with what the
 * agents say. -EBADMSG. */
int regions_assign(struct op *op, struct brumate_error *err);
