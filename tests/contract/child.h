// SPDX-License-Identifier: MIT
/*
 * A program under test: started as a child of the case, its lines counted as they come. A line with
 * BAD or ERR fails the case, whenever it is read. It dies with the case.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct child {
	pid_t pid;	 /* -1: none */
	pid_t own_child; /* what it said its own child is; 0: none */
	int out_fd;
	size_t steps;	/* "step N OK" */
	size_t started; /* "started" */
	bool ready, ended;
	char last[256]; /* last whole line */
	char part[256]; /* begin of the next one */
	size_t part_bytes;
};

/** Starts a program of tests/programs ("kinds", …) and waits until it is ready. */
void child_start(struct child *ret, const char *const *argv);
#define START(child, ...) child_start(child, (const char *const[]){ __VA_ARGS__, NULL })

/** Waits until it has done three steps more than now. */
void child_goes_on(struct child *child);

/** Fails the case if it does a step within a while. */
void child_stands_still(struct child *child);

/** Sends SIGUSR1 and waits until it says that it has started what that asks for. */
void child_make_busy(struct child *child);

/** Ends it and reaps it. */
void child_stop(struct child *child);
/** Kills it and reaps it. */
void child_kill(struct child *child);

/** Waits until @timeout_ms have passed; true if it ended before, its wait status in @ret_status. */
bool child_wait(struct child *child, unsigned int timeout_ms, int *ret_status);

/** Starts this very program as `contract --act ACTION PID`, and returns when it is about to call. */
void actor_start(struct child *ret, const char *action, pid_t pid);
