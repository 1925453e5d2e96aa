// SPDX-License-Identifier: MIT
/*
 * The file that a job's output is appended to. Its path is the user's: any file that is there, or was put there since,
 * is opened with the rights of the job's user, never with ours.
 */
#pragma once

#include <stdbool.h>

#include "job/target.h"

/** Where the output of a job goes whose user names no place: $BRUMATE_LOG_DIR/@id.log. Owned. */
char *job_log_default(const char *id);

/**
 * output_open() - open a file or device for appending
 * @dir_fd: what a relative @path starts from
 *
 * Made with mode 0600 where there is none. Never waits and never becomes a controlling terminal. Returns an
 * owned fd, or -errno: -ENXIO for pipes, sockets and block devices.
 */
int output_open(int dir_fd, const char *path);

/**
 * job_log_open() - open the job's log for appending, with the rights of the job's user
 * @make_dirs: the directories above it may be missing, as on another machine
 *
 * The default log lies in a directory of root's: it is made as root, given to the user, and refused where it
 * is a link or another user's. Returns an owned fd, or <0 with the path and the reason in @err.
 */
int job_log_open(const struct target *t, bool make_dirs, struct brumate_error *err);

/** File in the job's directory: a line "MS SIZE" for each mark. */
#define JOB_LOG_MARKS "log.marks"

/** What stands between the size of the mark before and this one was written by @ms, at most a second before. */
struct log_mark {
	uint64_t ms; /* since 1970; 0: not known */
	uint64_t size_bytes;
};

/** Reads the marks of a log (owned), in the order of sizes; where there is no file, none. 0 or -errno. */
int log_marks_read(struct log_mark **ret, size_t *ret_n, const char *path);
