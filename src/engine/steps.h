// SPDX-License-Identifier: MIT
/* Steps and judgements that several plans of this folder share. */
#pragma once

#include "engine/engine.h"

int step_identify(struct op *op, struct brumate_error *err);
int step_gpu_lock(struct op *op, struct brumate_error *err);
int step_gpu_checkpoint(struct op *op, struct brumate_error *err);
int step_gpu_unlock(struct op *op, struct brumate_error *err);
void step_undo_gpu(struct op *op);

/** The driver's part and the data of all processes: running, or off the GPU. Never cancelled. */
int step_bring_back(struct op *op, struct brumate_error *err);
int step_put_away(struct op *op, struct brumate_error *err);

/** Sets the job's state and the exit code of @err after a plan failed with @r. Returns @r. */
int engine_failed(struct op *op, int r, enum job_state if_alive, struct brumate_error *err);

/** Records in the job which GPUs it sees and how much it holds on each, for when it comes back. */
int record_gpus(struct op *op, struct brumate_error *err);

/**
 * Completes op->gpus.pairs to a map of every GPU the job saw onto the GPUs that are here: same model, and
 * itself where it is here. No pairs where all stay what they were. Errors to act on: -EOPNOTSUPP.
 */
int restore_map_gpus(struct op *op, struct brumate_error *err);

/** The memory the job needs must be free on the GPUs it goes to: a driver that runs out of it in the
 * middle of a restore loses the process (driver 580: error 2, then 304 for ever). -ENOSPC. */
int restore_check_vram(struct op *op, struct brumate_error *err);

const struct step *suspend_plan(size_t *ret_n);
const struct step *resume_plan(size_t *ret_n);
const struct step *checkpoint_plan(size_t *ret_n);
const struct step *restore_plan(size_t *ret_n);
