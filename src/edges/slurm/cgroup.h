// SPDX-License-Identifier: MIT
/* Own cgroups for what works for a user beyond one step: brumate/UID, in version 2 and in the hierarchies of version 1 by which Slurm
 * freezes, kills and limits. An administrator may set limits there; they are not removed by us. */
#pragma once

#include <sys/types.h>

/** Moves @pid out of Slurm's cgroups into those of @uid. Where it is in none of Slurm's, it stays. Needs root. */
void cgroup_move_out(pid_t pid, uid_t uid);

/** Where it would go for this @line of /proc/PID/cgroup, without its newline: a path below /sys/fs/cgroup; "": it stays. Pure. */
void cgroup_target(char ret[static 256], const char *line, uid_t uid);
