// SPDX-License-Identifier: MIT
/*
 * How much memory there is to be had, by /proc/meminfo and the limits of cgroups (version 2, mounted at
 * /sys/fs/cgroup). Beyond memory.max the kernel ends processes, beyond memory.high it holds them up.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** Bytes that this process can still take: what the machine has available, as far as the memory limits
 * of its cgroup and of those around it allow. */
uint64_t room_memory_bytes(void);

/** The cgroup of @pid (0: this process) beneath the root, which is "" (returns owned); NULL: none is known. */
char *room_cgroup(pid_t pid);

/** Makes @cgroup the one around it. False: it was the root. */
bool room_go_out(char *cgroup);

/** Bytes that the limits of this one cgroup leave, whatever those around it do; UINT64_MAX: it has none.
 * What the kernel takes back when memory is wanted, as cached files, does not count as used. */
uint64_t room_in_cgroup(const char *cgroup);
