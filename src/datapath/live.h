// SPDX-License-Identifier: MIT
/*
 * A host copy of device memory whose program goes on writing it, as the baseline of the copy that is made
 * when it stands still. What is in it is known by digests of what was copied, whatever the program did
 * meanwhile, so the second copy is right by itself.
 */
#pragma once

#include "datapath/datapath.h"

/** Copies, again where much changed meanwhile. What stands in its way is noted: the operation goes on
 * without. Returns 1 if nothing was copied. */
int live_copy(struct datapath *d, struct brumate_error *err);

/** Lets go of a baseline that live_copy() made. */
void live_undo(struct datapath *d);
