// SPDX-License-Identifier: MIT
/* Orphans are reaped as they come, protected children only by the thread that waits for them. */
#include "little.h"
#include "process/reap.h"

static int n_exits, last_status;
static pid_t last_pid;

static void on_exit_of(void *arg, pid_t pid, int status)
{
	CHECK(arg == &n_exits);
	n_exits++;
	last_pid = pid;
	last_status = status;
}

static pid_t fork_exit(int code, bool protect)
{
	reap_lock();
	pid_t pid = fork();
	if (!pid)
		_exit(code);
	if (protect)
		reap_protect(pid);
	reap_unlock();

	siginfo_t info;
	CHECK(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT) == 0);
	return pid;
}

static void protected_children_stay(void)
{
	int status = 0;
	pid_t mine = fork_exit(5, true), other = fork_exit(6, false);

	reap_orphans(on_exit_of, &n_exits);
	CHECK(n_exits == 1 && last_pid == other && WEXITSTATUS(last_status) == 6);
	CHECK(reap_wait(mine, &status) == 0 && WEXITSTATUS(status) == 5);
	CHECK(reap_wait(mine, &status) == -ECHILD);
}

static void poll_does_not_block(void)
{
	struct little l;
	int status = 0;

	reap_lock();
	l = little_start(little_pause, NULL);
	reap_protect(l.pid);
	reap_unlock();
	CHECK(reap_poll(l.pid, &status) == 0);
	kill(l.pid, SIGKILL);
	siginfo_t info;
	CHECK(waitid(P_PID, (id_t)l.pid, &info, WEXITED | WNOWAIT) == 0);
	reap_orphans(NULL, NULL);
	CHECK(reap_poll(l.pid, &status) == 1 && WTERMSIG(status) == SIGKILL);
	CHECK(reap_poll(l.pid, &status) == -ECHILD);
	close(l.ready_fd);
}

/* The protection ends with the child: it does not leak away, nor stick to the number. */
static void protection_ends_with_the_child(void)
{
	for (int i = 0; i < 200; i++) {
		int status;
		CHECK(reap_wait(fork_exit(0, true), &status) == 0);
	}
}

static void orphan_maker(void *arg)
{
	if (!fork()) {
		little_ready();
		_exit(9);
	}
	_exit(0);
}

static void orphans_are_reaped(void)
{
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	struct little l = little_start(orphan_maker, NULL);
	CHECK(waitpid(l.pid, NULL, 0) == l.pid);
	little_wait_ready(&l);
	char c;
	CHECK(read(l.ready_fd, &c, 1) == 0); /* the orphan has closed its end: it has ended */
	siginfo_t info;
	CHECK(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT) == 0);
	n_exits = 0;
	reap_orphans(on_exit_of, &n_exits);
	CHECK(n_exits == 1 && WEXITSTATUS(last_status) == 9);
	close(l.ready_fd);
}

int main(void)
{
	protected_children_stay();
	poll_does_not_block();
	protection_ends_with_the_child();
	orphans_are_reaped();
	return 0;
}
