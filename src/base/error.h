// SPDX-License-Identifier: MIT
/*
 * The error contract of the whole tree. Functions return int: 0 done, >0 a documented outcome of that function, <0 a
 * negative errno to be passed on. Where context helps, the last parameter is a struct brumate_error on the caller's
 * stack: it owns nothing, cannot leak and is sent between programs unchanged. brumate_fail() starts it,
 * brumate_wrap() prefixes it on the way up, so a user reads
 * "restore job-7: manifest: truncated: 2 of 4 bytes".
 */
#pragma once

#include <stdarg.h>

/** Exit codes of `brumate`, documented in brumate(1). */
enum exit_code {
	EXIT_OK = 0,
	EXIT_FAILED = 1,      /* failed, nothing more precise to say */
	EXIT_USAGE = 2,	      /* bad command line or parameter */
	EXIT_NOT_FOUND = 3,   /* no such job, checkpoint or process */
	EXIT_UNSUPPORTED = 4, /* not possible here; `brumate doctor` says why */
	EXIT_PERMISSION = 5,  /* belongs to another user */
	EXIT_BUSY = 6,	      /* another operation is under way, or something else is in the way */
	EXIT_STILL_RUNNING = 7, /* suspend or checkpoint failed; the job continues to run */
	EXIT_JOB_LOST = 8,	/* failed, and the job is lost */
	EXIT_BAD_IMAGE = 9,	/* image damaged, foreign, truncated or incompatible */
	EXIT_NO_ROOM = 10,	/* too little device memory is free; more may be later */
	EXIT_FROZEN = 11,	/* stopped or frozen from outside, so it cannot answer */
	EXIT_TIMEOUT = 124,	/* a deadline passed */
	EXIT_OURS = 125,	/* `run --attach`: brumate itself failed */
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NO_COMMAND = 127,
};

struct brumate_error {
	int code;	    /* positive errno; 0 = no error */
	int exit_code;	    /* enum exit_code; 0 = derived from code */
	char text[1024];    /* one line, no newline, "context: context: cause" */
	char hint[512];	    /* what to do about it; empty if unknown */
	char parameter[64]; /* the call's parameter that is wrong; else empty */
};

#define BRUMATE_ERROR_NONE ((struct brumate_error){ 0 })

/** Starts an error. @err may be NULL. "%m" in @fmt is strerror(@code). Returns -@code. */
int brumate_fail(struct brumate_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/** Prefixes "@fmt: " to the text of @err and keeps code and hint; clears the parameter. Starts @err if it is empty.
 * Returns @r. */
int brumate_wrap(struct brumate_error *err, int r, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/** Sets the hint ("what to do") of @err, replacing an earlier one. @err may be NULL. */
void brumate_hint(struct brumate_error *err, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/** Sets the exit code explicitly (EXIT_STILL_RUNNING and the like). @err may be NULL. */
void brumate_error_exit(struct brumate_error *err, enum exit_code exit_code);

/** The exit code for @err: the explicit one, or the one derived from its errno. */
enum exit_code brumate_exit_code(const struct brumate_error *err);
