// SPDX-License-Identifier: MIT
/*
 * Sees tasks out of the code that a killed CRIU left running in them. That code notices the end of its
 * socket and takes itself out, by rt_sigreturn(2) into what the task was doing. But where it was busy
 * with CRIU's pipe or answers on its socket, it gets SIGPIPE first, which is blocked there, stays pending
 * and would end the task at its return (seen with 4.2.1: vmsplice(2) in the middle of a dump). So each
 * such task is traced from its stop to that return, and this signal is taken from it.
 *
 * Tracing is done by a process of its own: whoever traces is told of every stop by wait(2), and in the
 * callers another thread waits. It is forked from a program with threads and makes system calls only.
 */
#include "criu/private.h"
#include "process/reap.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ESCORT_S = 10, SYSCALL_STOP = SIGTRAP | 0x80, PENDING_MAX = 16 };

#define BIT_OF(signal) (1ull << ((signal)-1))

/* CRIU's code runs with all signals blocked but these. */
static bool blocks_all(pid_t pid)
{
	const uint64_t all = ~(BIT_OF(SIGKILL) | BIT_OF(SIGSTOP) | BIT_OF(SIGTRAP));
	uint64_t mask = 0;

	return ptrace(PTRACE_GETSIGMASK, pid, sizeof(mask), &mask) == 0 && (mask & all) == all;
}

/* Waits for the next stop: what stopped it, 0 for none of its own signals; <0 if it has ended. */
static int wait_stop(pid_t pid)
{
	int status;

	if (waitpid(pid, &status, __WALL) != pid || !WIFSTOPPED(status))
		return -1;
	return status >> 16 == PTRACE_EVENT_STOP ? 0 : WSTOPSIG(status);
}

/* Takes hold of a task; true if CRIU's code is in it. */
static bool seize(pid_t pid)
{
	int signal;

	if (ptrace(PTRACE_SEIZE, pid, NULL, PTRACE_O_TRACESYSGOOD) < 0)
		return false;
	ptrace(PTRACE_INTERRUPT, pid, NULL, NULL);
	if ((signal = wait_stop(pid)) < 0)
		return false;
	if (signal == SIGSTOP) /* ours */
		signal = 0;
	if (blocks_all(pid))
		return true;
	ptrace(PTRACE_DETACH, pid, NULL, signal);
	return false;
}

static bool sigpipe_is_pending(pid_t pid)
{
	struct __ptrace_peeksiginfo_args args = { .nr = PENDING_MAX };
	siginfo_t pending[PENDING_MAX];
	long n = ptrace(PTRACE_PEEKSIGINFO, pid, &args, pending);

	for (long i = 0; i < n; i++)
		if (pending[i].si_signo == SIGPIPE)
			return true;
	return false;
}

/* Lets it run to the end of its rt_sigreturn(2). False if it has ended. */
static bool run_to_return(pid_t pid)
{
	struct __ptrace_syscall_info call;
	bool returns = false;
	int signal = 0;

	for (;;) {
		if (ptrace(PTRACE_SYSCALL, pid, NULL, signal) < 0 || (signal = wait_stop(pid)) < 0)
			return false;
		if (signal != SYSCALL_STOP)
			continue;
		signal = 0;
		if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof(call), &call) <= 0)
			return true;
		if (returns && call.op == PTRACE_SYSCALL_INFO_EXIT)
			return true;
		returns = call.op == PTRACE_SYSCALL_INFO_ENTRY && call.entry.nr == SYS_rt_sigreturn;
	}
}

static void see_out(pid_t pid)
{
	int signal = 0;

	if (!run_to_return(pid))
		return;
	if (sigpipe_is_pending(pid)) {
		ptrace(PTRACE_CONT, pid, NULL, NULL);
		if ((signal = wait_stop(pid)) < 0)
			return;
	}
	ptrace(PTRACE_DETACH, pid, NULL, signal == SIGPIPE ? 0 : signal);
}

static _Noreturn void escort(const struct heal_state *h, bool *is_held)
{
	sigset_t none;

	/* Its end lets go of whatever it still traces. */
	signal(SIGALRM, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	alarm(ESCORT_S);
	for (size_t i = 0; i < h->before.n; i++)
		is_held[i] = h->pid_fds[i] >= 0 && h->before.items[i].state != 'T' &&
			     seize(h->before.items[i].id.pid);
	heal_signal(h, SIGCONT);
	for (size_t i = 0; i < h->before.n; i++)
		if (is_held[i])
			see_out(h->before.items[i].id.pid);
	_exit(0);
}

int heal_escort(const struct heal_state *h)
{
	auto_free bool *is_held = calloc(h->before.n + 1, sizeof(*is_held));
	int status;

	if (!is_held)
		return -ENOMEM;
	reap_lock();
	pid_t pid = fork();
	if (pid == 0)
		escort(h, is_held);
	int r = pid < 0 ? -errno : 0;
	if (pid > 0)
		reap_protect(pid);
	reap_unlock();
	return r < 0 ? r : reap_wait(pid, &status);
}
