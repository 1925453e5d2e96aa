// SPDX-License-Identifier: MIT
/* Showing a job's log as it grows, until the job ends. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "base/error.h"

enum follow_signals {
	FOLLOW_DETACHES, /* Ctrl-C ends the showing; the job goes on */
	FOLLOW_FORWARDS, /* Ctrl-C and SIGTERM go to the job; Ctrl-C twice within a second detaches */
};

enum { FOLLOW_DETACHED = 1 };

/**
 * follow_job() - copy the log of @job from @offset to stdout until the job ends
 * @job: the Job as the service gave it, borrowed
 * @ret_job: the Job as it was when it ended; owned
 *
 * Return: 0; FOLLOW_DETACHED, @ret_job not written; <0.
 */
int follow_job(json_t *job, off_t offset, enum follow_signals signals, json_t **ret_job,
	       struct brumate_error *err);

/** Copies what is there of @log to stdout. */
int show_log(const char *log, struct brumate_error *err);

/** Size of the file @path now; 0 if there is none. */
off_t log_size(const char *path);

/**
 * The exit status of `brumate` for a job that ended: its own; EXIT_JOB_LOST with @err's text where
 * it is lost; 0 with a word on stderr where it was checkpointed away.
 */
int job_exit_status(json_t *job, struct brumate_error *err);

/** follow_job(), then job_exit_status(); EXIT_OK where the user detached. */
int follow_to_end(json_t *job, off_t offset, enum follow_signals signals,
		  struct brumate_error *err);
