// SPDX-License-Identifier: MIT
/* What the files about agents share. */
#pragma once

#include "engine/park.h"

typedef int (*park_fn)(struct op *op, struct op_agent *a, struct brumate_error *err);

/** Calls @fn for all agents at once. The first failure; each agent keeps its own. */
int park_each(struct op *op, park_fn fn, struct brumate_error *err);

/** Connects to an agent, unless it is. A park_fn. */
int park_reach(struct op *op, struct op_agent *a, struct brumate_error *err);

/** Unmaps what an agent has of memory that is not whole. A park_fn. */
int park_empty(struct op *op, struct op_agent *a, struct brumate_error *err);

/** Forgets agents whose last call failed, and notes that their processes go by the driver. */
void park_drop_failed(struct op *op);

/** Lists the pieces of an agent, which is connected, and gets their fds. The gate need not be closed;
 * where it is open, -ENOENT: one was freed meanwhile. */
int park_export(struct op *op, struct op_agent *a, struct brumate_error *err);
