// SPDX-License-Identifier: MIT
/* Cgroups of this process. */
#pragma once

#include <sys/types.h>

/** Moves this process into the cgroups of the parent of @pid, as far as that is allowed. */
void cgroup_join_parent_of(pid_t pid);
