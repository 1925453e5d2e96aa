// SPDX-License-Identifier: MIT
/*
 * A directory in memory, for files that must never be on a disk in the clear: CRIU reads and writes plain ones.
 */
#pragma once

#include <stdint.h>

#include "base/error.h"

/**
 * memory_dir_open() - a directory on a tmpfs of its own for at most @max_bytes
 *
 * It has no path: nobody else sees it, and the kernel removes it with the last fd, even if we are killed. Who may not mount
 * has a child mount it in a user namespace of its own, in which the kernel allows that to every user. What is in it does not
 * go to swap where root makes it (since Linux 6.4); else it may, as all memory of the job may.
 * Returns its fd (owned), or -errno: -EPERM (neither may be had here), -ENOSYS (before Linux 5.2), -ENOMEM (the machine has
 * less left).
 */
int memory_dir_open(uint64_t max_bytes, struct brumate_error *err);
