// SPDX-License-Identifier: MIT
/*
 * Rehearsal: a checkpoint is restored apart from the machine (process/apart.h) to the point before its first
 * instruction, compared with what was saved, and thrown away. Nothing of it is a job's: there is no record, no device is
 * opened, nobody's file is written, and nobody outside is signalled.
 */
#pragma once

#include "criu/compare.h"
#include "engine/op.h"

/** What was looked at. */
struct rehearsal {
	struct criu_compared compared;
	uint64_t memory_bytes; /* in chunks, every byte compared with its digest */
	uint64_t filled_bytes; /* of it: written into the restored processes, too */
	uint64_t connections;
	double seconds;
};

/**
 * engine_rehearse() - rehearse the checkpoint op->restore.image
 *
 * The job of @op is none of this machine's, but says who restores: its id, user and group, and whether GPUs are simulated;
 * it has no directory. Errors to act on: with EXIT_BAD_IMAGE the checkpoint does not come back as it was, or not here, and
 * the text says why; with any other it could not be rehearsed, which says nothing of it.
 */
int engine_rehearse(struct rehearsal *ret, struct op *op, struct brumate_error *err);

/** A checkpoint that the record of a job names, or is to name. */
struct rehearse_name {
	char *id, *path; /* owned; NULL: none */
};
void rehearse_name_fini(struct rehearse_name *n);
DEFINE_AUTO_FINI(struct rehearse_name, rehearse_name_fini)

/** Gives the one that the record names. 0 or -ENOMEM. */
int rehearse_get_name(struct rehearse_name *ret, const struct target *target);

/** Has the record, which is not saved, name @name, which becomes what it named. */
void rehearse_swap_name(struct target *target, struct rehearse_name *name);

/**
 * rehearse_own() - rehearse the checkpoint @made that @op has just made of a job that goes on
 * @made: the record, which is on disk, names the one before it; taken where it names this one then
 *
 * One that does not come back is removed: EXIT_STILL_RUNNING. One that could not be rehearsed stays, and the error says so.
 */
int rehearse_own(struct op *op, struct rehearse_name *made, struct brumate_error *err);
