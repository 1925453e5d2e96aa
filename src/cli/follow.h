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

/** Size of the file @path now; 0 if there is none. */
off_t log_size(const char *path);

/**
 * follow_to_end() - copy the log of @job from @offset to stdout until the job ends
 * @job: the Job as the service gave it, borrowed
 *
 * Return: the exit status of `brumate` for it: its own; EXIT_OK where the user detached, or, with a word on
 * stderr, where it was checkpointed away; <0 where it failed or the job is lost (EXIT_JOB_LOST).
 */
int follow_to_end(json_t *job, off_t offset, enum follow_signals signals,
		  struct brumate_error *err);
