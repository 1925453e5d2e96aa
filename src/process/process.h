// SPDX-License-Identifier: MIT
/*
 * Processes as the kernel shows them: identity that survives pid reuse, trees, signals.
 * Never trusts a bare pid: a process is pid + start time (+ boot id when stored on disk).
 */
#pragma once

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

/** Identity of a process. Empty: pid 0. start_ticks: field 22 of /proc/PID/stat, by the machine's clock. */
struct proc_id {
	pid_t pid;
	uint64_t start_ticks;
};

#define PROC_ID_NONE ((struct proc_id){ 0 })

/** Whether both are one process. In a restored job a tick apart is the same (proc.c says why). */
bool proc_is_same(struct proc_id one, struct proc_id other);

enum { PROC_BOOT_ID_BYTES = 40, PROC_COMM_BYTES = 64 };

/** /proc/sys/kernel/random/boot_id, for identities that are stored. */
int proc_boot_id(char ret[static PROC_BOOT_ID_BYTES]);

/**
 * Identifies a running process. A thread id that is not a process is refused: -EINVAL with the
 * process it belongs to in the text. Errors to act on: -ESRCH.
 */
int proc_identify(struct proc_id *ret, pid_t pid, struct brumate_error *err);

/** What a look at a process finds. That it could not be looked at (no descriptors, no memory, no permission) is an
 * answer of its own: nobody may take it for an end. */
enum proc_life {
	PROC_GONE,   /* there is no such process, or its number is another's */
	PROC_ZOMBIE, /* it has ended, and its parent has not read its status yet */
	PROC_ALIVE,
	PROC_UNKNOWN, /* nobody can tell at present */
};

/** Looks for exactly this process. */
enum proc_life proc_look(struct proc_id id);
/** True once it is certain that exactly this process runs no more: gone, or a zombie. */
bool proc_has_ended(struct proc_id id);
/** True once it is certain that exactly this process is gone, and no zombie either. */
bool proc_is_gone(struct proc_id id);

/* What /proc has by a number alone, which may be another process's by now. */

/** file_read() of /proc/PID/NAME. */
int proc_file_read(pid_t pid, const char *name, size_t max_bytes, char **ret_text,
		   size_t *ret_len_bytes);

/** dir_open() of it. */
DIR *proc_dir_open(pid_t pid, const char *name);

/** readlink(2) of it. @ret ends with a NUL, and is empty where it cannot be read. */
ssize_t proc_link_read(pid_t pid, const char *name, char *ret, size_t room);

/** The next process in a directory of /proc. Returns as dir_next(). */
int proc_next(DIR *proc, pid_t *ret);

/* * Whether all its threads stand stopped or have ended, from /proc/PID/task: 1, 0, -ESRCH, or -errno where that is unknown.
 *  */
int proc_has_stopped(struct proc_id id);

/** Whether one of its threads stands stopped, by a signal or by its tracer: 1, 0, -ESRCH, -errno. */
int proc_has_stopped_thread(struct proc_id id);

/** Whether SIGSTOP waits for it, as on a busy machine, or one of its threads has been stopped by a signal: 1, 0, -ESRCH, -errno. */
int proc_is_to_stop(struct proc_id id);

/**
 * How a process ended that is still a zombie: its status as wait(2) gives it, from /proc/PID/stat
 * (proc(5), exit_code; the kernel shows it to who may trace the process). 0; -EAGAIN: it has not
 * ended; -ESRCH; -errno where that is unknown.
 */
int proc_zombie_status(struct proc_id id, int *ret_status);

/** pidfd of exactly this process (owned); -ESRCH where it is gone for certain, else -errno. */
int proc_open(struct proc_id id);

/* * Whether the process behind @pidfd has its number still, running or not: then each act by that number since the pidfd was
 * opened hit this process. */
bool proc_has_number(int pidfd);

/** A copy (owned) of descriptor @number of process @pid, which takes the rights of a tracer; or -errno. Where the process runs, look
 * what it is: the number may have been given away. */
int proc_descriptor(pid_t pid, int number);

/** Signals exactly this process. Returns 0, -ESRCH where it is gone for certain, -EPERM, -errno. */
int proc_signal(struct proc_id id, int signal);

/** The same with the rights of user @uid where we are root (user_signals_enter()); 0: with ours. */
int proc_signal_as(struct proc_id id, int signal, uid_t uid);

/** What /proc/PID/stat and status say. */
struct proc_info {
	struct proc_id id;
	pid_t ppid, pgid, sid;
	pid_t inner_pid;  /* pid in its innermost pid namespace (NSpid) */
	int pid_ns_depth; /* levels of NSpid: 1 = our own namespace */
	pid_t tracer_pid;
	char state;	/* R S D T t Z X */
	bool is_kernel; /* a thread of the kernel */
	bool is_fork;	/* made by fork, and has started no program since */
	bool ends; /* its last thread is in exit(2): without memory, perhaps still with open files; or a zombie */
	char comm[PROC_COMM_BYTES];
	uid_t uid;
	gid_t gid;
	int tty_nr;
	uint64_t rss_bytes;
	int n_threads;
};
int proc_read(struct proc_info *ret, pid_t pid, struct brumate_error *err);

/** Reads what /proc/PID/stat says again, of a process that was read a moment ago; the rest is as in @known, which may be
 * @ret. Returns 0, -ESRCH where it is gone, -errno. */
int proc_reread(struct proc_info *ret, const struct proc_info *known);

/** A process and all its descendants, parents before children. Owns the array. */
struct proc_tree {
	struct proc_info *items;
	size_t n;
};
#define PROC_TREE_EMPTY ((struct proc_tree){ 0 })
void proc_tree_fini(struct proc_tree *t);
DEFINE_AUTO_FINI(struct proc_tree, proc_tree_fini)

/**
 * The members of a job: @root and its descendants; and orphans, which have come to @reaper since their parents
 * ended, and theirs. Not @apart, nor children of @reaper that run a program of ours; where the caller is the @reaper,
 * none that it waits for (process/reap.h).
 */
struct proc_members {
	struct proc_id root;   /* pid 0: it has ended */
	struct proc_id reaper; /* pid 0: nobody gathers orphans */
	struct proc_id apart;  /* a child of @reaper that is not a member; pid 0: none */
	uid_t uid; /* whose job it is: with that user's rights members are signalled; 0: with ours */
};

/* * Like proc_tree_read(), of all members: the root first, then orphans and descendants. -ESRCH if there are none. */
int proc_members_read(struct proc_tree *ret, const struct proc_members *m,
		      struct brumate_error *err);

/* * Like proc_tree_kill(), of all members. Those that user @m->uid may not signal are left alone. */
int proc_members_kill(const struct proc_members *m, uint64_t deadline_ns);

/** Whether @info, of a tree that proc_members_read() read, is an orphan that came to @m's reaper. */
static inline bool proc_is_orphan(const struct proc_members *m, const struct proc_info *info)
{
	return m->reaper.pid && info->ppid == m->reaper.pid && info->id.pid != m->root.pid;
}

/** Reads the tree below @root. Zombies are listed (state 'Z'). -ESRCH if @root is gone. */
int proc_tree_read(struct proc_tree *ret, struct proc_id root, struct brumate_error *err);

/**
 * Finds a process outside the tree that lives in the memory of a member (clone(2), CLONE_VM): what it writes there is
 * seen by nobody who holds the tree still. Returns 1 and @ret, or 0; -errno. Of processes that we may not look into it
 * knows nothing.
 */
int proc_find_sharer(struct proc_info *ret, const struct proc_tree *tree);

/** Reads the children of process @pid, of all its threads (@ret_pids: owned; NULL if there are none). They may
 * end or multiply meanwhile. Returns 0, -ESRCH, or -errno where not all could be read. */
int proc_children(pid_t pid, pid_t **ret_pids, size_t *ret_n);

/** A number that is another one once the process has done anything: used the processor, or slept once more. 0 or -errno. */
int proc_work(pid_t pid, uint64_t *ret);

/** Waits on its pidfd for the end of a process, which need not be our child. Returns 0, -ETIMEDOUT, or -errno where
 * nobody can tell. */
int proc_wait_gone(struct proc_id id, uint64_t deadline_ns);

/**
 * Stops the tree below @root (inclusive) until nobody forks any more, SIGKILLs all of it and waits until
 * none is left or the deadline passes (-ETIMEDOUT). Does not reap.
 */
int proc_tree_kill(struct proc_id root, uint64_t deadline_ns);

/** Whether a mapping begins here; else it is a field of one. */
static inline bool smaps_is_head(const char *line)
{
	return *line && strchr("0123456789abcdef", *line);
}

/** Bytes of "KEY   12 kB", with @key "Rss:" or the like; 0: another line. */
static inline uint64_t smaps_bytes(const char *line, const char *key)
{
	size_t n = strlen(key);

	return strncmp(line, key, n) ? 0 : strtoull(line + n, NULL, 10) << 10;
}

/** A line of /proc/PID/maps, or the head of a mapping in smaps. */
struct proc_mapping {
	uint64_t start, end, inode;
	char access[8]; /* "rw-p" */
	unsigned major, minor;
	const char *name; /* to the end of the line; borrowed */
};

/** Reads one. Returns false for another line, and for one that is none. Pure. */
bool proc_mapping_parse(struct proc_mapping *ret, const char *line);

/** Field @n of the text of /proc/PID/stat, numbered as in proc_pid_stat(5), from 3 on; NULL: it has not so many. Pure. */
const char *proc_stat_field(const char *text, int n);

/** The number in the line NAME of /proc/PID/status; -1 where there is none, or it cannot be read. */
int64_t proc_status_number(pid_t pid, const char *name);

/** What follows "NAME:" in the text of a file such as /proc/PID/status; NULL if there is no such line. */
const char *proc_status_field(const char *text, const char *name);
