// SPDX-License-Identifier: MIT
/* All agents of a job at once: what is asked of each is asked in a thread of its own. */
#pragma once

#include "datapath/datapath.h"

typedef int (*agents_fn)(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);

/** Calls @fn for every agent. Returns the first failure; each agent keeps its own. Those whose processes end are
 * not among them any more, and are no failure. */
int agents_ask(struct datapath *d, agents_fn fn, struct brumate_error *err);

/** Connects to an agent, unless it is. */
int agents_reach(struct datapath *d, struct datapath_agent *a, struct brumate_error *err);
