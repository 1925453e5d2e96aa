// SPDX-License-Identifier: MIT
/*
 * Starting our programs: their raised limits, while programs of users get the limits that our caller had; and
 * starting a program that is not our child and outlives us.
 */
#pragma once

/** Keeps ended children until we wait for them, even if our caller ignores SIGCHLD: a program inherits that, and
 * could neither determine how its children ended nor trust a pid. Call it first. */
void children_wait_for_us(void);

/** Of a child after fork(2): no signal has a handler, is ignored or blocked. */
void signals_reset(void);

/* Each is called once, when a program starts, and remembers the initial value. */

/** Raises RLIMIT_NOFILE to its hard limit. */
void limits_raise_files(void);
/** Makes the kernel spare this process, as far as permitted, when memory runs out. */
void limits_lower_score(void);

/** Restores the initial limits, in a child that will run another program. Async-signal-safe. */
void limits_restore(void);

/**
 * Runs @child, which does not return, in a process that is not a child of ours. It may only make async-signal-safe
 * calls, because we may have threads. 0, -errno.
 */
int spawn_detached(void (*child)(const void *arg), const void *arg);

/** How many sockets the service manager gave to this process, as sd_listen_fds(3) has it: the descriptors from START_SOCKETS on. What
 * is started from here is given none. */
int start_take_sockets(void);
enum { START_SOCKETS = 3 };

enum { SPAWN_FDS_MAX = 8 };

/**
 * spawn_leave() - detach from the caller, in such a child that is about to execute a program
 * @fds: borrowed; they get the numbers 0 to @n - 1, at most SPAWN_FDS_MAX. May contain duplicates.
 *
 * The process gets the limits that our own caller had and a new session; no signal is blocked, and no other
 * descriptor stays open. Async-signal-safe. Returns 0 or -errno.
 */
int spawn_leave(const int *fds, int n);

/** Runs the program @argv[0], a path, with the arguments from @argv + 1 on, in such a detached child. Its descriptors
 * are @fds, as for spawn_leave(). 0, -errno. */
int spawn_program(const char *const *argv, const int *fds, int n);
