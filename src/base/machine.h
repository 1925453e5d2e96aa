// SPDX-License-Identifier: MIT
/*
 * The resources of this machine, as far as this process may use them, by /proc/meminfo and the limits of cgroups:
 * those of version 2, mounted at /sys/fs/cgroup, or, if version 1 has the memory controller, that at
 * /sys/fs/cgroup/memory. Above memory.max (memory.limit_in_bytes) the kernel kills processes, above memory.high it
 * throttles them.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** Reads the value @key of /proc/meminfo ("MemAvailable"), in bytes. Returns false, and writes nothing, if it is
 * missing. */
bool machine_meminfo(const char *key, uint64_t *ret_bytes);

/** Limit of pinned host memory for copies of device memory if Pool= is not set: half of the machine's, in bytes; 0:
 * unknown. */
uint64_t machine_pool_bytes(void);

/** Cores that this process may run on, at least 1. */
unsigned machine_cores(void);

/** Bytes that this process can still allocate: what the machine has available, within the memory limits of its cgroup
 * and the ancestors of that. 0 where the machine does not say. */
uint64_t machine_room_bytes(void);

/** The cgroup of @pid (0: this process) that limits its memory, as a path beneath /sys/fs/cgroup; "" for that
 * directory itself (returns owned); NULL: unknown. */
char *machine_cgroup(pid_t pid);

/** Whether @pid is in a frozen cgroup, like that of a paused container. */
bool machine_is_frozen(pid_t pid);

/** That cgroup, as a path beneath /sys/fs/cgroup (owned); NULL: it is in none. */
char *machine_frozen_cgroup(pid_t pid);

/** Replaces @cgroup by its parent. Returns false if it was the root. */
bool machine_cgroup_go_out(char *cgroup);

/** The bytes that the limits of this one cgroup leave, ignoring its ancestors; UINT64_MAX if it has no limit. Memory
 * that the kernel reclaims on demand, such as cached files, does not count as used. */
uint64_t machine_cgroup_room_bytes(const char *cgroup);
