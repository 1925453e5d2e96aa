// SPDX-License-Identifier: MIT
/* What the files of verbs do for each other. */
#pragma once

#include <jansson.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "cli/command.h"

/* ---- where a place in an object store is given instead of a checkpoint (verb-move.c) ---- */

/** Where @url is and how to get there, as "url" and "remote": from the caller's environment and files. */
int add_remote(json_t *p, const char *url, struct brumate_error *err);

/** Pulls the checkpoint @url as the options of @in say. @ret: its path here, owned. */
int pull_path(char **ret, const struct invocation *in, const char *url, struct brumate_error *err);

/** The checkpoints below @url, as `Checkpoints` tells them. @ret owned. */
int list_remote(json_t **ret, const char *url, struct brumate_error *err);

/** Removes the checkpoint @url. */
int remove_remote(const char *url, struct brumate_error *err);

/* ---- showing a job's log as it grows, until the job ends (follow.c) ---- */

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

/*
 * ---- operands, each of which is looked at before the first is acted on (verb-job.c) ----
 */

/** Does to what @word names what the command is for, or only looks whether that is there. @parameters: of the call, but for
 * the word. */
typedef int (*operand_fn)(const struct invocation *in, json_t *parameters, const char *word,
			  struct brumate_error *err);

/** Calls @fn for each operand, in order. Failures are printed in that order, and the first gives the exit code. */
int for_each_operand(const struct invocation *in, operand_fn fn, json_t *parameters,
		     struct brumate_error *err);

/** An operand_fn: whether there is such a job. */
int look_for_job(const struct invocation *in, json_t *parameters, const char *word,
		 struct brumate_error *err);

/*
 * ---- jobs that a command is for beside those it names (verb-operation.c) ----
 *
 * All of those in a state in which it makes sense.
 */

/** What --all chose. Zeros are nothing. */
struct several {
	json_t *list; /* what List replied; owns the strings of @words */
	char **words; /* ids, NULL-terminated; owned */
};
void several_fini(struct several *s);
DEFINE_AUTO_FINI(struct several, several_fini)

/**
 * several_choose() - put the jobs that --all means in place of operands
 * @states: in which jobs are meant, separated by spaces
 * @choice: these in a sentence, as in "no job is running or suspended"
 * @ret: zeros before; the operands of @in are borrowed from it
 *
 * Without it @in stays as it is. That there is none is said on standard error and is no failure. Errors to act on:
 * -EINVAL (operands next to it).
 */
int several_choose(struct several *ret, struct invocation *in, const char *states,
		   const char *choice, struct brumate_error *err);
