// SPDX-License-Identifier: MIT
/*
 * brumate-reaper (src/reaper), the root of the tree of a job that we started: what it is known by, and which of its
 * children runs the job's command. An adopted job, or one from a checkpoint older than reapers, has none.
 */
#pragma once

#include "process/process.h"

#define REAPER_PROGRAM "brumate-reaper"

/** Whether process @id is a reaper, by the file that it runs. */
bool reaper_is(struct proc_id id);

/** The process that runs the command below @root. PROC_ID_NONE: @root is not a reaper, or the command has ended. */
struct proc_id reaper_find_command(struct proc_id root);

/* * Whether @root is a reaper whose children have all ended: it ends next. False where that is unknown. */
bool reaper_is_alone(struct proc_id root);
