// SPDX-License-Identifier: MIT
/* See start.h. */
#include "base/start.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"

static struct rlimit files; /* initial value; hard limit 0: unknown */
static char score[16];	    /* initial value of oom_score_adj; empty: unknown, or not changed */

/* proc(5): without CAP_SYS_RESOURCE the score can be lowered to the lowest value that a process with the capability
 * has set, initially 0. */
static const char *const scores[] = { "-900", "0" };
static const char score_path[] = "/proc/self/oom_score_adj";

void children_wait_for_us(void)
{
	signal(SIGCHLD, SIG_DFL);
}

static int write_score(const char *text)
{
	int fd = open(score_path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));

	if (fd >= 0)
		close(fd);
	return n < 0 ? -1 : 0;
}

static void read_score(void)
{
	int fd = open(score_path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, score, sizeof(score) - 1);

	if (fd >= 0)
		close(fd);
	score[n > 0 ? n : 0] = '\0';
}

void limits_lower_score(void)
{
	read_score();
	for (size_t i = 0; *score && i < sizeof(scores) / sizeof(scores[0]); i++)
		if (atoi(scores[i]) < atoi(score) && write_score(scores[i]) == 0)
			return;
	score[0] = '\0';
}

void limits_raise_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		return;
	files = limit;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

void limits_restore(void)
{
	if (*score)
		write_score(score);
	if (files.rlim_max)
		setrlimit(RLIMIT_NOFILE, &files);
}

static bool is_subreaper(void)
{
	int set = 0;

	return prctl(PR_GET_CHILD_SUBREAPER, &set) == 0 && set;
}

/* A subreaper becomes the parent of its orphans again, so the process is made a sibling instead. A process without a
 * parent (pid 1) cannot do that. */
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

int spawn_leave(const int *fds, int n)
{
	int copies[SPAWN_FDS_MAX];
	sigset_t none;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* Out of the range of the numbers that they will get. */
	for (int i = 0; i < n; i++)
		copies[i] = fcntl(fds[i], F_DUPFD, n);
	for (int i = 0; i < n; i++)
		if (copies[i] < 0 || dup2(copies[i], i) < 0)
			return -errno;
	syscall(SYS_close_range, n, ~0u, 0);
	limits_restore(); /* not earlier: our caller may have had a low limit */
	return 0;
}

struct program {
	const char *const *argv;
	const int *fds;
	int n;
};

static void become_program(const void *arg)
{
	const struct program *p = arg;

	if (spawn_leave(p->fds, p->n) == 0)
		execv(p->argv[0], (char *const *)p->argv + 1);
	_exit(EXIT_OURS);
}

int spawn_program(const char *const *argv, const int *fds, int n)
{
	const struct program program = { argv, fds, n };

	return spawn_detached(become_program, &program);
}

void signals_reset(void)
{
	const struct sigaction sa = { .sa_handler = SIG_DFL };
	sigset_t none;

	for (int s = 1; s < NSIG; s++)
		if (s != SIGKILL && s != SIGSTOP)
			sigaction(s, &sa, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

int start_take_sockets(void)
{
	const char *pid = getenv("LISTEN_PID"), *count = getenv("LISTEN_FDS");
	const int n = pid && count && atol(pid) == getpid() ? atoi(count) : 0;

	if (n > 0) {
		unsetenv("LISTEN_PID");
		unsetenv("LISTEN_FDS");
		unsetenv("LISTEN_FDNAMES");
	}
	for (int i = 0; i < n; i++)
		if (fcntl(START_SOCKETS + i, F_SETFD, FD_CLOEXEC) < 0)
			return i;
	return n > 0 ? n : 0;
}
