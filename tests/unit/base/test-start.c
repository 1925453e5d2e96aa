// SPDX-License-Identifier: MIT
/* A program that is started detached has the descriptors that it was given, and nothing else of its caller's. */
#include "check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/start.h"

struct child {
	int fds[4];
	pid_t parent;
	rlim_t files;
};

/* The descriptors stand in each other's places, and are a pipe of which 2 and 3 are the writing end. */
static void run_child(const void *arg)
{
	const struct child *c = arg;
	struct rlimit limit;
	sigset_t mask;

	if (spawn_leave(c->fds, 4) < 0)
		_exit(1);
	const bool alone = getppid() != c->parent && getsid(0) == getpid() && fcntl(4, F_GETFD) < 0;
	const bool free_of_it = getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
				limit.rlim_cur == c->files && sigprocmask(0, NULL, &mask) == 0 &&
				!sigismember(&mask, SIGUSR1);
	char text[] = "??";

	text[0] = alone ? 'a' : '-';
	text[1] = free_of_it ? 'f' : '-';
	if (write(2, text, 1) != 1 || write(3, text + 1, 1) != 1)
		_exit(1);
	_exit(0);
}

int main(void)
{
	struct rlimit limit;
	sigset_t mask;
	int ends[2];
	char got[3] = "";

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 32;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	limits_raise_files();
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	CHECK(sigprocmask(SIG_BLOCK, &mask, NULL) == 0);

	CHECK(pipe(ends) == 0);
	const struct child c = { { ends[0], ends[0], ends[1], ends[1] }, getpid(), 32 };
	CHECK(spawn_detached(run_child, &c) == 0);
	close(ends[1]);
	for (size_t n = 0; n < 2;) {
		ssize_t some = read(ends[0], got + n, 2 - n);

		CHECK(some > 0);
		n += (size_t)some;
	}
	CHECK_STR(got, "af");
	return 0;
}
