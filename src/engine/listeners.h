// SPDX-License-Identifier: MIT
/* Ports of a job that are held while it is checkpointed (--wake, process/listeners.h). */
#pragma once

#include "engine/op.h"

/** In the preflight of a checkpoint: refuses what could not be held. */
int op_listeners_look(struct op *op, struct brumate_error *err);

/** At CRIU_EVENT_FROZEN: takes copies of them, and notes in the record where they are. Nothing if that is not asked for. */
int op_listeners_take(struct op *op, struct brumate_error *err);

/** Adds them to @inherits (owned, grown; @n of them) for a restore. */
int op_listeners_give(struct op *op, struct criu_inherit **inherits, size_t *n,
		      struct brumate_error *err);

/** Releases them, and has the record say so, which is not saved by it. */
void op_listeners_drop(struct op *op);
