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
