// SPDX-License-Identifier: MIT
/*
 * Starting programs of ours: what they need more of than others, while the programs of users get what their callers
 * had, and how one is started that is to be nobody's child and to outlive whoever starts it.
 */
#pragma once

/** Children that have ended stay until we wait for them, even where our caller ignores SIGCHLD: a program inherits that,
 * and could tell neither how its children ended nor whose a pid is. Called first of all. */
void children_wait_for_us(void);

/* Each is called once, when a program starts, and remembers what was there before. */

/** Raises RLIMIT_NOFILE to its hard limit. */
void limits_raise_files(void);
/** Makes the kernel spare this process, as far as it allows, where memory runs out. */
void limits_lower_score(void);

/** Sets back what was changed, in a child that is to be somebody else's. Async-signal-safe. */
void limits_restore(void);

/**
 * Runs @child, which does not return, in a process that is not a child of ours. It may only make
 * async-signal-safe calls, because we may have threads. 0, -errno.
 */
int spawn_detached(void (*child)(const void *arg), const void *arg);

enum { SPAWN_FDS_MAX = 8 };

/**
 * spawn_leave() - leave the caller behind, in such a child that is about to execute a program
 * @fds: borrowed; they get the numbers 0 to @n - 1, at most SPAWN_FDS_MAX. One may be there twice.
 *
 * Its limits are those that our own caller had, its session is a new one, no signal is blocked, and no other
 * descriptor is left. Async-signal-safe. Returns 0 or -errno.
 */
int spawn_leave(const int *fds, int n);

/** Runs the program @argv[0], a path, with the arguments from @argv + 1 on, in such a child that leaves us behind. Its
 * descriptors are @fds, as of spawn_leave(). 0, -errno. */
int spawn_program(const char *const *argv, const int *fds, int n);
