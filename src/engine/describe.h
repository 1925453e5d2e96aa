// SPDX-License-Identifier: MIT
/* Filling the manifest of a checkpoint: the job, the host, the GPUs, the processes, the timings. */
#pragma once

#include "engine/op.h"

/** All but phases and files; reads the tree anew, so call it while the tree is frozen. */
int describe_tree(struct op *op, struct brumate_error *err);

/** Copies the phases measured so far. 0, -ENOMEM. */
int describe_phases(struct op *op);
