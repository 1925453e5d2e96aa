// SPDX-License-Identifier: MIT
/*
 * The operations of a job. Each takes a job whose record the caller owns, leaves it in a state of docs/states.md and
 * saves it. On failure the job is as it was wherever that can be, and the exit code of @err says in which state it is:
 * EXIT_STILL_RUNNING where it was touched and goes on, EXIT_JOB_LOST where it is gone.
 */
#pragma once

#include "engine/op.h"

/** Does what the request asks for, as do the others. Errors to act on: -ENODATA (nothing of it is on a GPU). */
int engine_suspend(struct op *op, struct brumate_error *err);

/** The pairs of @op->gpus may map GPUs. */
int engine_resume(struct op *op, struct brumate_error *err);

/** What the suspend or checkpoint that @op->kind names would come to, as the type Foreseen of io.brumate (owned): refuses
 * what that would refuse, with the same errors, and touches nothing. */
int engine_foresee(json_t **ret, struct op *op, struct brumate_error *err);

/** The request names the store and the checkpoint to be made there. */
int engine_checkpoint(struct op *op, struct brumate_error *err);

/** The image of op->restore is the opened checkpoint; pairs may map GPUs. The job's root is filled in. */
int engine_restore(struct op *op, struct brumate_error *err);

/**
 * Puts right what a dead predecessor left half done: waits for a CRIU still at work, brings GPUs back or leaves them
 * suspended as they were, sets the state. For a shim that takes a job over, and whenever an operation has left the job
 * between two states as its undo failed: then the kind of @op is RECOVER_UNDO, and the record goes on saying what
 * failed. A job whose only copy of device memory is gone is ended, and lost. Errors to act on: all; while the state is
 * one between two others, it is to be tried again.
 */
#define RECOVER_UNDO "undo"
int engine_recover(struct op *op, struct brumate_error *err);

/** Names of all steps, "checkpoint.gpu-lock" …, for tests of fault points. NULL-terminated. */
const char *const *engine_step_names(void);
