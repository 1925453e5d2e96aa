// SPDX-License-Identifier: MIT
/* Whether an eventfd is a semaphore (EFD_SEMAPHORE): each read takes one from it, and not all. */
#pragma once

#include <sys/types.h>

/** Descriptor @fd of process @pid, all of whose threads stand still: 1, 0, -errno (-ENOENT: there is none). Old kernels do not say
 * so: then it is tried. */
int eventfd_of_process_is_semaphore(pid_t pid, int fd);

/** Finds it out by reading and writing, which leaves the count as it was; nobody else may do so meanwhile. 1, 0, -errno. */
int eventfd_try_semaphore(int fd);
