// SPDX-License-Identifier: MIT
/* Little processes for tests to look at: forked, known to be ready, never outliving the test. */
#pragma once

#include "check.h"
#include "process/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct little {
	pid_t pid;
	int ready_fd; /* one byte comes for each little_ready(); end of file when all of it has ended */
};

static int little_out = -1;

/* In the little process: tells the test that it has got this far. */
static inline void little_ready(void)
{
	CHECK(write(little_out, "r", 1) == 1);
}

static inline void little_wait_ready(const struct little *l)
{
	char c;

	CHECK(read(l->ready_fd, &c, 1) == 1);
}

/* Runs @fn(@arg) in a child, in its own session with no terminal; it ends when @fn returns. */
static inline struct little little_start(void (*fn)(void *arg), void *arg)
{
	int p[2];
	struct little l;

	CHECK(pipe2(p, O_CLOEXEC) == 0);
	fflush(NULL);
	l.pid = fork();
	CHECK(l.pid >= 0);
	if (!l.pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setsid();
		close(p[0]);
		little_out = p[1];
		fn(arg);
		_exit(0);
	}
	close(p[1]);
	l.ready_fd = p[0];
	return l;
}

static inline struct proc_id little_id(const struct little *l)
{
	struct proc_id id;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (proc_identify(&id, l->pid, &err) < 0) {
		fprintf(stderr, "%s\n", err.text);
		exit(1);
	}
	return id;
}

static inline void little_end(struct little *l)
{
	kill(l->pid, SIGKILL);
	CHECK(waitpid(l->pid, NULL, 0) == l->pid);
	close(l->ready_fd);
}

static inline void little_pause(void *arg)
{
	(void)arg;
	little_ready();
	for (;;)
		pause();
}
