// SPDX-License-Identifier: MIT
/*
 * What this machine has, as far as this process may use it, by /proc/meminfo and the limits of cgroups: those of version 2,
 * mounted at /sys/fs/cgroup, or where version 1 has the controller of memory, that at /sys/fs/cgroup/memory. Beyond memory.max
 * (memory.limit_in_bytes) the kernel ends processes, beyond memory.high it holds them up.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** Reads the value @key of /proc/meminfo ("MemAvailable"), in bytes. Returns false, and writes nothing, where it
 * does not tell. */
bool machine_meminfo(const char *key, uint64_t *ret_bytes);

/** Host memory that copies of device memory may have pinned where Pool= does not say: half of the machine's, in bytes; 0:
 * it cannot be told. */
uint64_t machine_pool_bytes(void);

/** Cores that this process may run on, at least 1. */
unsigned machine_cores(void);

/** Bytes that this process can still take: what the machine has available, as far as the memory limits
 * of its cgroup and of those around it allow. */
uint64_t machine_room_bytes(void);

/** The cgroup of @pid (0: this process) that limits its memory, as a path beneath /sys/fs/cgroup, which is "" itself (returns
 * owned); NULL: none is known. */
char *machine_cgroup(pid_t pid);

/** Whether @pid stands still because its cgroup is frozen, as that of a container is that was paused. */
bool machine_is_frozen(pid_t pid);

/** Makes @cgroup the one around it. Returns false where it was the root. */
bool machine_cgroup_go_out(char *cgroup);

/** The bytes that the limits of this one cgroup leave, whatever those around it leave; UINT64_MAX where it has no
 * limit. What the kernel takes back when memory is wanted, such as cached files, does not count as used. */
uint64_t machine_cgroup_room_bytes(const char *cgroup);
