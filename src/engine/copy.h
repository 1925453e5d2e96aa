// SPDX-License-Identifier: MIT
/*
 * The copies of a job's device memory, in a thread beside the driver's and CRIU's work: out of parked
 * memory into a host copy and on to the store, in from a host copy, in from the store. One at a time; the
 * operation's own thread starts and joins it, and alone touches what is held (op->vault).
 */
#pragma once

#include "engine/op.h"

/* Steps. Those that start one return at once. */

/** Starts the copy of what is parked, unless it is to stay on the GPU; its pieces go on to the store where
 * a checkpoint is being written. */
int step_copy_out(struct op *op, struct brumate_error *err);
/** Waits for it: then the host copy is held. Phase "data-out". */
int step_data_out(struct op *op, struct brumate_error *err);
/** Starts filling fresh device memory from the host copy, unless device memory is held. */
int step_copy_in(struct op *op, struct brumate_error *err);
/**
 * Waits until all device memory is made, as long as the copy will outlast the driver's part anyway: the driver
 * takes turns between processes, so what is made beside its restore is made late, and the copy waits for it. Not an
 * end: who comes next goes on whatever became of it.
 */
int step_make(struct op *op, struct brumate_error *err);
/** Starts loading the image's device memory into a host copy, and filling device memory from that. */
int step_load(struct op *op, struct brumate_error *err);
/** Waits for either of the two: then device memory is held. Phase "data-in". */
int step_data_in(struct op *op, struct brumate_error *err);
/** Stops what is under way and forgets it. */
void step_undo_copy(struct op *op);

/**
 * Device memory on its way in, used before all of it is filled. False: there is none. Else nothing that
 * was told stays true beyond copy_end_ahead(), and a copy that has to be begun anew waits for that.
 */
bool copy_begin_ahead(struct op *op);
/** Waits until more than the first @n pieces are filled. Returns how many are, and the fds of all (borrowed
 * until copy_end_ahead()); 0: the copy has ended, or is stale. Any thread. */
size_t copy_wait_filled(struct op *op, size_t n, const int **ret_fds);
/** Whether what was told has become void: that device memory will not be the job's. */
bool copy_is_stale(struct op *op);
void copy_end_ahead(struct op *op);

/** Both at once, here and now, whatever the caller says meanwhile. For undoing. */
int copy_back(struct op *op, struct brumate_error *err);
int copy_away(struct op *op, struct brumate_error *err);

/** True while one is under way, and how far it is, for progress. */
bool copy_is_on(const struct op *op);
uint64_t copy_measure(void *op);
uint64_t copy_total_bytes(const struct op *op);
