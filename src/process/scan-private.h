// SPDX-License-Identifier: MIT
/* What the files of scan.c share: the open files of a tree, and how a finding is made. */
#pragma once

#include <sys/stat.h>

#include "process/scan.h"

/** An open file of a process of the tree. */
struct scan_fd {
	const struct proc_info *process;
	int fd;
	int flags;	 /* open(2)'s, from fdinfo; -1 unknown */
	pid_t pidfd_pid; /* a pidfd's process; 0: no pidfd, -1: it has ended */
	struct stat st;
	char target[512]; /* as /proc/PID/fd/N reads */
};

/** A scan under way: everything is gathered first, then each check looks through it. */
struct scan {
	struct scan_report report;
	const struct proc_tree *tree;
	struct scan_fd *fds;
	size_t n_fds;
	int r; /* first failure to record a finding */
};

/** Records a finding about @p: text is "process PID (COMM) " and what @fmt makes. */
void scan_find(struct scan *s, enum scan_level level, unsigned scope, const struct proc_info *p,
	       const char *what, const char *hint, const char *fmt, ...)
	__attribute__((format(printf, 7, 8)));

bool scan_tree_has(const struct scan *s, pid_t pid);

/** The process and number under which the tree has socket or pipe @inode open; NULL: it has not. */
const struct scan_fd *scan_find_inode(const struct scan *s, const char *prefix,
				      unsigned long inode);

/** Reads the open files of the whole tree. */
void scan_gather_fds(struct scan *s);

/** The checks; scan.c holds their table. */
void scan_check_fds(struct scan *s);
void scan_check_pipes(struct scan *s);
void scan_check_unix(struct scan *s);
void scan_check_tcp(struct scan *s);
