// SPDX-License-Identifier: MIT
/* What the files of the scan share: scan.c gathers and has the table of checks; scan-system.c and scan-sockets.c look for
 * what CRIU saves and cannot bring back, refuses when the job stands still already, or forgets. */
#pragma once

#include <stdarg.h>
#include <string.h>

#include "process/scan.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

enum { SCAN_FDINFO_BYTES_MAX = 1 << 20 };

/* The key of what is found about ended processes. */
#define SCAN_ENDED "ended-process"

/* An open file of a process of the tree. */
struct scan_fd {
	const struct proc_info *process;
	int fd;
	int flags;	 /* open(2)'s, from fdinfo; -1 unknown */
	int mount_id;	 /* from fdinfo; -1 unknown */
	pid_t pidfd_pid; /* a pidfd's process; 0: no pidfd, -1: it has ended */
	bool is_leased;	 /* for writing */
	bool wakes;	 /* a timer that ends a suspend of the machine */
	bool is_unix;	 /* a unix socket, as the socket diagnosis says */
	struct stat st;
	char target[512]; /* as /proc/PID/fd/N reads */
};

/* What checks ask of the mappings of a process. The kernel makes their text at each read. */
struct scan_mappings {
	int r;				  /* -errno of the read; then the rest is unknown */
	unsigned refused;		  /* bits by the table of scan.c */
	bool has_removed;		  /* files that have lost the name they were opened by */
	bool has_device;		  /* that of the first descriptor of a GPU's device */
	const struct gpu_vendor *managed; /* whose managed memory it has */
};

/* A scan under way: everything is gathered first, then each check looks through it. */
struct scan {
	struct scan_report report;
	const struct proc_tree *tree;
	struct scan_fd *fds;
	size_t n_fds;
	struct scan_mappings *mappings; /* for each process of the tree */
	struct scan_socket *outside;	/* connected to processes outside the tree */
	size_t n_outside;
	int r; /* first failure to record a finding */
};

/* A finding about @p, whose text is "process PID (COMM) " and what @fmt makes. */
void scan_vfound(struct scan *s, enum scan_level level, unsigned scope, const struct proc_info *p,
		 const char *what, const char *hint, const char *fmt, va_list ap);

static inline bool tree_has(const struct scan *s, pid_t pid)
{
	for (size_t i = 0; i < s->tree->n; i++)
		if (s->tree->items[i].id.pid == pid)
			return true;
	return false;
}

static inline const struct scan_fd *find_inode(const struct scan *s, const char *prefix,
					       unsigned long inode)
{
	size_t len = strlen(prefix);

	for (size_t i = 0; i < s->n_fds; i++)
		if (s->fds[i].st.st_ino == inode && !strncmp(s->fds[i].target, prefix, len))
			return &s->fds[i];
	return NULL;
}

/* Findings about what CRIU would save and not bring back, in words of their own. */
void scan_found(struct scan *s, enum scan_level level, const struct proc_info *p, const char *what,
		const char *hint, const char *fmt, ...) __attribute__((format(printf, 6, 7)));

/* ---- checks, rows of scan.c's table ---- */

void scan_epolls(struct scan *s);
void scan_special_pipes(struct scan *s);
void scan_special(struct scan *s);
void scan_paths(struct scan *s);
void scan_linked(struct scan *s);
void scan_shared(struct scan *s);
void scan_limits(struct scan *s);
void scan_ended(struct scan *s);
void scan_sealed(struct scan *s);
void scan_threads(struct scan *s);
void scan_system_v(struct scan *s);
void scan_sandboxes(struct scan *s);

void scan_protocols(struct scan *s);
void scan_netlink(struct scan *s);
void scan_datagrams(struct scan *s);
