// SPDX-License-Identifier: MIT
/* A job's pieces of device memory as regions of a checkpoint, and back. A piece that lies in several
 * segments of a host copy is several regions of one id. */
#pragma once

#include "engine/data.h"
#include "engine/op.h"

/** Hands all pieces, whose host copy is @copy, to the checkpoint being written (op->memory). */
int regions_save(struct op *op, const struct data_copy *copy, struct brumate_error *err);

/** Makes what is held of the image's regions: pieces without fds, of processes as their own namespace
 * numbers them. Nothing held where the image has none. -EBADMSG. */
int regions_find(struct op *op, struct brumate_error *err);

/** Reads all pieces from the image into @copy, which data_alloc() made: zeros are not written to memory. */
int regions_load(struct op *op, const struct data_copy *copy, bool (*cancelled)(void *arg),
		 void *arg, struct brumate_error *err);

/** Gives the pieces that regions_find() made to the restored processes, and compares them with what the
 * agents say. -EBADMSG. */
int regions_assign(struct op *op, struct brumate_error *err);
