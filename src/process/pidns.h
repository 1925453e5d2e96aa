// SPDX-License-Identifier: MIT
/*
 * A pid namespace for a job whose process ids are taken in ours. Its init is a process of our own
 * that does nothing but reap: it outlives the program that started it for as long as the job lives,
 * leaves the job's exit status in a file, and ends when the job's last process has ended.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "process/process.h"

/** What the init is called. It has the protection from the kernel's OOM killer that the program that starts it has. */
#define PIDNS_INIT_PROGRAM "brumate-init"

/** A directory that stands at another path in the namespace. */
struct pidns_place {
	const char *dir;
	const char
		*parent;  /* hidden by an empty file system: nothing that others do there is seen */
	const char *path; /* in @parent, made there, for @dir */
};

/**
 * Starts an init in new pid and mount namespaces with a /proc of their own; it becomes a child of
 * the calling process, not protected from reap_orphans(). When process @root_pid (its number in the
 * namespace) ends, a line "PID STATUS" (as wait(2) gives it) is appended to @status_path, which is
 * created with mode 0600. @place: NULL: all is where it is. An init whose job never came is to be killed by its caller.
 */
int pidns_start(struct proc_id *ret_init, pid_t root_pid, const char *status_path,
		const struct pidns_place *place, struct brumate_error *err);

/** The status that was left for @root_pid (the latest). 0, -ENOENT if there is none yet. */
int pidns_read_status(const char *status_path, pid_t root_pid, int *ret_status);

/**
 * Ends every init that notes into @status_path, removed or not, and with it what lives in its
 * namespace: those of a program that was killed before it could record them. For when the job is
 * known not to live. Returns 0, or -errno where not all could be looked for.
 */
int pidns_end_all(const char *status_path);

/* * The pid namespace of the caller, as a number; 0: unknown. */
uint64_t pidns_own(void);

/* * As the arguments of the caller's init name it, where it lives in such a namespace (owned; the end may be missing); else
 * NULL. The maker of a namespace chooses those arguments, so they prove nothing. */
char *pidns_own_status_path(void);

/** The process that has number @inner_pid in the pid namespace of @of (our numbering); 0: none. */
pid_t pidns_translate(pid_t of, pid_t inner_pid);

/** Keeps the init @init from ending, with which CRIU in its namespace would end too, for as long as
 * the returned descriptor is open. -errno. */
int pidns_hold(pid_t init);
