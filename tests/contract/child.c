// SPDX-License-Identifier: MIT
/* Programs under test: starting, reading, ending; see child.h. */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "contract.h"

enum { READY_MS = 60000, STEP_MS = 20000, STILL_MS = 300, END_MS = 10000 };

static void take_line(struct child *child)
{
	int own_child;

	child->part[child->part_bytes] = '\0';
	memcpy(child->last, child->part, child->part_bytes + 1);
	child->part_bytes = 0;
	if (strstr(child->last, "BAD") || strstr(child->last, "ERR"))
		fail("program %d says: %s", (int)child->pid, child->last);
	if (strstr(child->last, "step ") && strstr(child->last, " OK"))
		child->steps++;
	else if (!strncmp(child->last, "ready", 5))
		child->ready = true;
	else if (!strcmp(child->last, "started"))
		child->started++;
	else if (sscanf(child->last, "child %d", &own_child) == 1)
		child->own_child = own_child;
}

static void take_text(struct child *child, const char *text, size_t len_bytes)
{
	for (size_t i = 0; i < len_bytes; i++)
		if (text[i] == '\n')
			take_line(child);
		else if (child->part_bytes < sizeof(child->part) - 1)
			child->part[child->part_bytes++] = text[i];
}

/* Reads what is there, waiting for it until the deadline. False: nothing came, or it ended. */
static bool read_some(struct child *child, uint64_t deadline_ns)
{
	struct pollfd poller = { .fd = child->out_fd, .events = POLLIN };
	char text[4096];

	if (child->ended || poll(&poller, 1, deadline_left_ms(deadline_ns)) <= 0)
		return false;

	ssize_t n = read(child->out_fd, text, sizeof(text));
	if (n <= 0) {
		child->ended = true;
		return false;
	}
	take_text(child, text, (size_t)n);
	return true;
}

static void drain(struct child *child)
{
	while (read_some(child, 0))
		;
}

static void wait_for(struct child *child, const size_t *counter, size_t want,
		     unsigned int timeout_ms, const char *what)
{
	uint64_t deadline_ns = deadline_in_ms(timeout_ms);

	while (*counter < want)
		if (!read_some(child, deadline_ns))
			fail("program %d %s before %s; its last line: %s", (int)child->pid,
			     child->ended ? "ended" : "did nothing more", what, child->last);
}

static void program_path(char *ret, size_t len_bytes, const char *name)
{
	char self[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n < 0)
		fail("own path: %s", strerror(errno));
	self[n] = '\0';
	if (!name)
		snprintf(ret, len_bytes, "%s", self);
	else if ((size_t)snprintf(ret, len_bytes, "%s/../programs/%s", dirname(self), name) >=
		 len_bytes)
		fail("path of %s too long", name);
}

static void spawn(struct child *ret, const char *path, const char *const *argv)
{
	int pipe_fds[2];
	pid_t parent = getpid();

	*ret = (struct child){ .pid = -1 };
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		fail("pipe: %s", strerror(errno));

	ret->pid = fork();
	if (ret->pid < 0)
		fail("fork: %s", strerror(errno));
	if (ret->pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		dup2(pipe_fds[1], STDOUT_FILENO);
		execv(path, (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	close(pipe_fds[1]);
	ret->out_fd = pipe_fds[0];
}

static void wait_ready(struct child *child, const char *name)
{
	uint64_t deadline_ns = deadline_in_ms(READY_MS);

	while (!child->ready)
		if (!read_some(child, deadline_ns))
			fail("%s did not become ready; its last line: %s", name, child->last);
}

void child_start(struct child *ret, const char *const *argv)
{
	char path[8192];

	program_path(path, sizeof(path), argv[0]);
	spawn(ret, path, argv);
	wait_ready(ret, argv[0]);
}

void actor_start(struct child *ret, const char *action, pid_t pid)
{
	char path[8192], number[16];

	program_path(path, sizeof(path), NULL);
	snprintf(number, sizeof(number), "%d", (int)pid);
	spawn(ret, path, (const char *const[]){ path, "--act", action, number, NULL });
	wait_ready(ret, action);
}

void child_goes_on(struct child *child)
{
	drain(child);
	wait_for(child, &child->steps, child->steps + 3, STEP_MS, "three more steps");
}

void child_stands_still(struct child *child)
{
	uint64_t deadline_ns = deadline_in_ms(STILL_MS);

	drain(child);
	size_t before = child->steps;
	while (read_some(child, deadline_ns))
		;
	if (child->steps != before)
		fail("program %d goes on when it must not: %s", (int)child->pid, child->last);
}

void child_make_busy(struct child *child)
{
	drain(child);
	kill(child->pid, SIGUSR1);
	wait_for(child, &child->started, child->started + 1, STEP_MS, "it was busy");
}

bool child_wait(struct child *child, unsigned int timeout_ms, int *ret_status)
{
	int pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
	struct pollfd poller = { .fd = pidfd, .events = POLLIN };

	if (pidfd < 0)
		fail("pidfd of %d: %s", (int)child->pid, strerror(errno));
	int r = poll(&poller, 1, (int)timeout_ms);
	close(pidfd);
	if (r <= 0)
		return false;

	waitpid(child->pid, ret_status, 0);
	drain(child);
	close(child->out_fd);
	child->pid = -1;
	return true;
}

static void end(struct child *child, int signal)
{
	int status;

	kill(child->pid, signal);
	if (!child_wait(child, END_MS, &status))
		fail("program %d does not end after signal %d", (int)child->pid, signal);
}

void child_stop(struct child *child)
{
	end(child, SIGTERM);
}

void child_kill(struct child *child)
{
	end(child, SIGKILL);
}
