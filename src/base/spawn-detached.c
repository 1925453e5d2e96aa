// SPDX-License-Identifier: MIT
/* See spawn-detached.h. */
#include "base/spawn-detached.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static bool is_subreaper(void)
{
	int set = 0;

	return prctl(PR_GET_CHILD_SUBREAPER, &set) == 0 && set;
}

/* Orphans of a subreaper come back to it, so there the process is made a sibling instead; one that is
 * nobody's child itself (pid 1) cannot do that. */
int spawn_detached(void (*child)(const void *arg), const void *arg)
{
	if (is_subreaper()) {
		long pid = syscall(SYS_clone, CLONE_PARENT | SIGCHLD, NULL, NULL, NULL, NULL);

		if (pid == 0)
			child(arg);
		if (pid > 0)
			return 0;
	}
	pid_t middle = fork();
	if (middle < 0)
		return -errno;
	if (middle == 0) {
		pid_t pid = fork();

		if (pid == 0)
			child(arg);
		_exit(pid < 0 ? errno : 0);
	}
	int status;
	while (waitpid(middle, &status, 0) < 0)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? -WEXITSTATUS(status) : -ECHILD;
}
