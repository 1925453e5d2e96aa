// SPDX-License-Identifier: MIT
/* Steps and judgements that several plans of this folder share. */
#pragma once

#include "engine/engine.h"

/* Steps. The ones about device memory do nothing where the job was suspended already, or has no agents. */

/** Finds the processes with GPU state, and their agents. */
int step_identify(struct op *op, struct brumate_error *err);
int step_gate(struct op *op, struct brumate_error *err);
int step_park(struct op *op, struct brumate_error *err);
/** Starts the copy of what is parked, unless it is to stay on the GPU. */
int step_copy_out(struct op *op, struct brumate_error *err);
int step_unmap(struct op *op, struct brumate_error *err);
int step_gpu_lock(struct op *op, struct brumate_error *err);
int step_gpu_checkpoint(struct op *op, struct brumate_error *err);
int step_gpu_unlock(struct op *op, struct brumate_error *err);
/** Waits for the transfer under way. */
int step_data(struct op *op, struct brumate_error *err);
int step_map_early(struct op *op, struct brumate_error *err);
int step_map(struct op *op, struct brumate_error *err);
int step_open(struct op *op, struct brumate_error *err);

/** Undoes gate, park and unmap. Requires the driver's part to be running. */
void step_undo_park(struct op *op);
void step_undo_copy(struct op *op);
void step_undo_gpu(struct op *op);
/** Takes pieces out again that step_map() put in, the gates still being closed. */
void step_undo_map(struct op *op);

/** The driver's part and the data of all processes: running, or off the GPU. Never cancelled. */
int step_bring_back(struct op *op, struct brumate_error *err);
int step_put_away(struct op *op, struct brumate_error *err);

/** Has the record say how long the kept host copy is. */
void step_record_baseline(struct op *op);

/** Before the processes are killed: off the GPU, as far as that goes. */
void step_discard_gpus(struct op *op);

/* Members that stand still while their job is suspended, standstill.c. */

/** Stops all members that have no part in what is yet to be done to the GPUs. */
int step_stop_others(struct op *op, struct brumate_error *err);
/** Stops all members. */
int step_stop(struct op *op, struct brumate_error *err);
void step_undo_stop(struct op *op);
/** Has the members with GPU state run on, and finds them again. */
int step_continue(struct op *op, struct brumate_error *err);
/** The same of a job that was suspended when it was saved. */
int step_continue_restored(struct op *op, struct brumate_error *err);
/** Has the others run on, as those are through. */
int step_continue_others(struct op *op, struct brumate_error *err);

/** After what failed or was interrupted: who stood still does so again where the job is suspended, and runs on where it is
 * running. */
void standstill_renew(struct op *op);

/* The image that op->checkpoint.writer writes. */

/** From now on host copies of device memory go on to it. Its memory is begun, unless it is. */
int image_begin_device(struct op *op, struct brumate_error *err);
/** Nobody reads the memory any more that was handed to it. */
void image_end_device(struct op *op);
/** Waits for the transfer and for the store, and completes it. The manifest says all but phases, files and memory. */
int image_commit(struct op *op, struct brumate_error *err);

/** Sets the job's state after a plan is through. What was done is done: a record that cannot be written is noted, and
 * is to be written again by its owner. */
void engine_done(struct op *op, enum job_state state);

/** Sets the job's state and the exit code of @err after a plan failed with @r. Returns @r. */
int engine_failed(struct op *op, int r, enum job_state if_alive, struct brumate_error *err);

/** Has CRIU bring back the processes of op->restore.image. @own has directory, log, namespaces and callbacks; the rest is filled
 * in. Errors to act on: -EEXIST (a pid is taken). */
int step_run_criu(struct op *op, struct criu_options *own, struct brumate_error *err);

/** Ends CRIU once the operation is cancelled or its time is over (criu_options.on_tick; @arg: struct op). */
int step_tick(void *arg, struct brumate_error *err);

/** Tells the caller of an operation that it has failed, while it lasts until CRIU ends (criu_options.on_stuck; @arg: struct op). */
void step_tell_stuck(void *arg, pid_t criu, const struct brumate_error *why);

/** Whether the job has ended, or is just being killed: a process loses what it has on the GPU a moment before
 * it is gone. */
bool target_ends_now(const struct target *target);

/** Whether @op may ask for a rehearsal. -EINVAL. */
int check_rehearse(const struct op *op, struct brumate_error *err);

/** The exit code of @r, of an operation that has touched nothing. Returns @r. */
int engine_unseen(const struct op *op, int r, struct brumate_error *err);

const struct step *suspend_plan(size_t *ret_n);
const struct step *resume_plan(size_t *ret_n);
const struct step *checkpoint_plan(size_t *ret_n);
const struct step *restore_plan(size_t *ret_n);

/* ---- filling the manifest of a checkpoint: the job, the host, the GPUs, the processes, the timings (describe.c) ---- */

/** All but phases and files; reads the tree again, so call it while the tree is frozen. */
int describe_tree(struct op *op, struct brumate_error *err);

/** Copies the phases measured so far. 0, -ENOMEM. */
int describe_phases(struct op *op);
