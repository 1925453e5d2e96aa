// SPDX-License-Identifier: MIT
/*
 * What in a job's tree will not checkpoint, found from outside without disturbing the job: only
 * /proc is read, nothing is stopped or attached to.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/process.h"

/**
 * fstatat() of a descriptor of a process (@name in @dir_fd, its /proc/PID/fd) as far as the kernel knows, for which no file
 * system is asked: one of a user's need not answer. 0, -errno.
 */
int scan_stat_fd(int dir_fd, const char *name, struct stat *ret);

/** Whether the file system with that number is a tmpfs which we see mounted: it holds memory. */
bool scan_is_tmpfs(dev_t dev);

/** Whether a process holds a lease of a file for writing (F_SETLEASE), by what /proc says of its descriptor. Who opens the file then,
 * and were it to read, has the kernel signal the holder, which ends it unless it expects that. */
bool scan_has_write_lease(const char *fdinfo);

/** Whether CRIU cannot hold a deleted file (st_nlink 0) of this length: it keeps the length in 32 bits. */
bool scan_is_too_long(const struct stat *st);

/** How bad a finding is. */
enum scan_level {
	SCAN_NOTE,    /* works, but worth knowing (a TCP connection to outside) */
	SCAN_SUSPECT, /* may lose the job: asked about, --force goes on */
	SCAN_REFUSE,  /* cannot work: refused before the job is touched */
};

/** What a finding prevents. */
enum scan_scope {
	SCAN_GPU = 1u << 0,  /* suspend, and all that needs it */
	SCAN_CRIU = 1u << 1, /* checkpoint to disk only */
	SCAN_SLOW =
		1u << 2, /* asked for, never of a finding: also looks for what takes long to find */
};

struct scan_finding {
	enum scan_level level;
	unsigned scope; /* SCAN_GPU | SCAN_CRIU */
	pid_t pid;
	char what[32]; /* stable key: "io_uring", "managed-memory", "legacy-ipc", "peer-access" … */
	char text[256]; /* "process 123 (python3) has an io_uring (fd 7)" */
	char hint[256]; /* what to do about it */
	unsigned inode; /* of a socket that waits to be accepted; otherwise 0 */
};

/** The key of TCP connections: where it is a note, the other end is outside the tree. */
#define SCAN_TCP "tcp"

/** The key of one to outside the tree that CRIU may not save, and that a set may have both ends of. */
#define SCAN_TCP_OUTSIDE "tcp-outside"

/** The key of what --tcp-skip-in-flight is for. */
#define SCAN_TCP_IN_FLIGHT "tcp-in-flight"

/** The key of what a checkpoint that leaves the job running cannot hold. */
#define SCAN_LINKED "deleted-name"

/** The key of what --drop-external is for. */
#define SCAN_UNIX_OUTSIDE "unix-socket"

struct gpu_vendor;

struct scan_report {
	struct scan_finding *items;
	size_t n;
};
#define SCAN_REPORT_EMPTY ((struct scan_report){ 0 })
void scan_report_fini(struct scan_report *r);
DEFINE_AUTO_FINI(struct scan_report, scan_report_fini)

/** Adds a finding (copied). For callers that know more than /proc (the driver's view). 0, -ENOMEM. */
int scan_add(struct scan_report *r, const struct scan_finding *f);

/**
 * Scans every process of @tree for what is in @scopes (SCAN_GPU | SCAN_CRIU); others may be found too. Only
 * SCAN_CRIU reads the tables of TCP connections, which takes the kernel 2 ms each even where they are empty
 * (6.18). Processes that end meanwhile are skipped.
 */
int scan_tree(struct scan_report *ret, const struct proc_tree *tree, unsigned scopes,
	      struct brumate_error *err);

/** A unix socket of the tree that is connected to a process outside it, as of a client of a system service. */
struct scan_socket {
	unsigned inode;
	bool is_packets; /* SOCK_SEQPACKET, otherwise SOCK_STREAM */
	bool is_nonblocking;
};

/** Finds them (owned). What the kernel does not tell is not found. 0, -ENOMEM. */
int scan_find_outside(struct scan_socket **ret, size_t *ret_n, const struct proc_tree *tree);

/** Whether a process can have GPU state, as far as its threads tell: false is for sure. A forked child of one that
 * has has the device and the library of its parent, but none of the driver's threads. */
bool scan_can_have_gpu_state(const struct proc_info *info);

/* * Whether the process has the vendor's device open or its driver library mapped (a process worth asking the driver about):
 * 1, 0, or -errno where that is unknown. */
int scan_uses_gpu(pid_t pid);

/** The same, and whose: *@ret where it does. */
int scan_gpu_vendor(pid_t pid, const struct gpu_vendor **ret);
