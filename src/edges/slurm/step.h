// SPDX-License-Identifier: MIT
/*
 * What our two plugins in one slurmstepd share: which step this is and whose. The SPANK plugin learns it from Slurm and puts it into
 * the environment of slurmstepd, which no task inherits; the proctrack plugin reads it there.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

#include "edges/slurm/site.h"

#define STEP_VARIABLE "BRUMATE_SLURM_STEP" /* "JOB.STEP UID GID" */
#define STEP_USER_VARIABLE \
	"BRUMATE_SLURM_USER_" /* and a name: a variable of the user's, for programs that act as the user */

/** Where a step is: its file in the site's RunDir has one of these names, and its slurmstepd locks it. */
enum step_place { STEP_HERE, STEP_AWAY, STEP_GONE };

struct step_of {
	char name[64]; /* "17.0", "17.batch" */
	uid_t uid;
	gid_t gid;
};

/** The step of this slurmstepd; false: it has no tasks that are jobs of brumate. */
bool step_get(struct step_of *ret);

/** Notes where the step is. Needs root; failures are ignored: then nobody waits for it. */
void step_place(const struct site *s, const char *name, enum step_place place);

/** Whether a step of the Slurm job @job is still on this node's GPUs. What cannot be looked at is. */
bool step_is_here(const struct site *s, const char *job);
/** Whether any step of another job than @job is known here at all. */
bool step_has_neighbours(const struct site *s, const char *job);
