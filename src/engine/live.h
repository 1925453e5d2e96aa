// SPDX-License-Identifier: MIT
/*
 * A host copy of device memory whose program goes on writing it, as a base for the copy that is made
 * when it stands still. What is in it is known by digests of what was copied, whatever the program did
 * meanwhile, so that the second copy is right by itself.
 */
#pragma once

#include "engine/op.h"

/** Copies, again where much changed meanwhile. What stands in its way is noted: the operation goes on
 * without. */
int step_live(struct op *op, struct brumate_error *err);
void step_undo_live(struct op *op);
