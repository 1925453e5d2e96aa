// SPDX-License-Identifier: MIT
/* A task that a killed CRIU left in its code is seen out of it: all its signals are blocked, SIGPIPE is pending, a
 * breakpoint stands in its way, and a return follows. */
#include "check.h"
#include "sanitized.h"

#include "criu/criu-private.h"

#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

static int broken_fd;
static bool in_criu;

/* Where CRIU's breakpoint is. */
static __attribute__((noinline)) void pass(void)
{
	__asm__ volatile("" ::: "memory");
}

/* With all signals but SIGTRAP blocked (sigfillset(3) would leave two out that are the library's) a signal
 * handler is to the kernel what CRIU's code is. */
static void stop_and_break(int signal)
{
	const uint64_t all = ~(1ull << (SIGTRAP - 1));

	if (in_criu)
		syscall(SYS_rt_sigprocmask, SIG_BLOCK, &all, NULL, sizeof(all));
	kill(getpid(), SIGSTOP);
	pass();
	if (write(broken_fd, "x", 1) >= 0)
		_exit(3);
}

static _Noreturn void task(int done_fd)
{
	struct sigaction sa = { .sa_handler = stop_and_break };
	int pipe_fds[2];

	prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed check is not to leave it behind */
	CHECK(pipe(pipe_fds) == 0 && close(pipe_fds[0]) == 0);
	broken_fd = pipe_fds[1];
	sigaction(SIGUSR1, &sa, NULL);
	raise(SIGUSR1);
	CHECK(write(done_fd, "", 1) == 1);
	for (;;)
		pause();
}

static int end_of(pid_t pid)
{
	int status;

	CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
	return WTERMSIG(status);
}

static pid_t start_task(bool is_in_criu, int *ret_done_fd)
{
	int done[2], status;

	CHECK(pipe(done) == 0);
	in_criu = is_in_criu;
	pid_t pid = fork();
	if (!pid)
		task(done[1]);
	close(done[1]);
	CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	*ret_done_fd = done[0];
	return pid;
}

/* As CRIU does that waits for the return. */
static void set_breakpoint(pid_t pid)
{
#if defined(__x86_64__)
	const size_t registers = offsetof(struct user, u_debugreg);
	int status;

	if (ptrace(PTRACE_SEIZE, pid, NULL, NULL) < 0)
		return; /* the rest can be tested all the same */
	CHECK(ptrace(PTRACE_INTERRUPT, pid, NULL, NULL) == 0);
	CHECK(waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status));
	if (ptrace(PTRACE_POKEUSER, pid, registers, (unsigned long)pass) == 0)
		ptrace(PTRACE_POKEUSER, pid, registers + 7 * sizeof(long), 1);
	CHECK(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0);
#else
	(void)pid;
#endif
}

static void see_through(pid_t pid)
{
	struct heal_state h = HEAL_STATE_EMPTY;
	struct proc_id id;

	CHECK(proc_identify(&id, pid, NULL) == 0 && heal_prepare(&h, id, 0, NULL) == 0);
	for (size_t i = 0; i < h.before.n; i++)
		h.before.items[i].state = 'S'; /* before it was stopped */
	heal_tree(&h, -1);
	heal_state_fini(&h);
}

int main(void)
{
	char byte;
	int done_fd;

	if (SANITIZED_THREADS)
		SKIP("the thread sanitizer calls signal handlers by itself, from which none "
		     "returns to the kernel");
	pid_t pid = start_task(true, &done_fd);
	set_breakpoint(pid);
	see_through(pid);
	CHECK(read(done_fd, &byte, 1) == 1); /* it is where it was before */
	kill(pid, SIGPIPE);		     /* one of its own is left to it */
	CHECK(end_of(pid) == SIGPIPE);
	close(done_fd);

	pid = start_task(false, &done_fd); /* not in CRIU's code: nothing is kept from it */
	see_through(pid);
	CHECK(end_of(pid) == SIGPIPE);
	close(done_fd);
	return 0;
}
