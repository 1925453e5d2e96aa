// SPDX-License-Identifier: MIT
/* Locking a process that is in the middle of something: in time, or not at all. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "contract.h"
#include "driver.h"

enum { SHORT_MS = 200, LONG_MS = 20000, STOPPED_MS = 2000, STOPPED_S = 4 };

/* A lock that failed leaves the process running; one that came about is taken back. */
static void lock_in_vain(struct child *child, const char *name, unsigned int timeout_ms)
{
	int result = do_lock(child->pid, timeout_ms);

	measured(name, result);
	if (result == CUDA_SUCCESS)
		must_unlock(child->pid);
	else
		EXPECT(state_of(child->pid) == CU_PROCESS_STATE_RUNNING);
	child_goes_on(child);
}

static void lock_with_patience(struct child *child)
{
	child_make_busy(child);
	EXPECT(do_lock(child->pid, LONG_MS) == CUDA_SUCCESS);
	must_checkpoint(child->pid);
	must_restore(child->pid);
	must_unlock(child->pid);
	child_goes_on(child);
}

static void run_kernel(const char *argument)
{
	struct child child;

	START(&child, "kinds", "busy", "--busy-ms", "1500");
	child_make_busy(&child);
	lock_in_vain(&child, "lock-during-kernel", SHORT_MS);
	lock_with_patience(&child);
}

static void run_callback(const char *argument)
{
	struct child child;

	START(&child, "kinds", "callback", "--busy-ms", "1500");
	child_make_busy(&child);
	lock_in_vain(&child, "lock-during-callback", SHORT_MS);
	lock_with_patience(&child);
}

static void run_synchronize(const char *argument)
{
	struct child child;

	START(&child, "kinds", "sync", "--busy-ms", "1500");
	child_make_busy(&child);
	lock_in_vain(&child, "lock-during-synchronize", SHORT_MS);
	lock_with_patience(&child);
}

static volatile pid_t stopped;

static void continue_stopped(int signal)
{
	kill(stopped, SIGCONT);
}

/*
 * A process stopped by a signal cannot answer; once continued it goes on, and can be locked. A driver
 * that heeds no timeout here is helped out by the alarm.
 */
static void run_stopped(const char *argument)
{
	struct child child;
	siginfo_t info;

	START(&child, "kinds", "plain");
	stopped = child.pid;
	signal(SIGALRM, continue_stopped);
	/* All of its threads: one that still ran would take the request, and the time would count. */
	EXPECT(kill(child.pid, SIGSTOP) == 0);
	EXPECT(waitid(P_PID, (id_t)child.pid, &info, WSTOPPED) == 0);
	alarm(STOPPED_S);
	int result = do_lock(child.pid, STOPPED_MS);
	measured("lock-stopped-heeds-timeout", alarm(0) > 0);
	kill(child.pid, SIGCONT);
	measured("lock-stopped", result);
	if (result == CUDA_SUCCESS)
		must_unlock(child.pid);
	child_goes_on(&child);
	must_lock(child.pid);
	must_unlock(child.pid);
	child_goes_on(&child);
}

const struct contract_case busy_cases[] = {
	{ "lock-during-kernel", run_kernel },
	{ "lock-during-callback", run_callback },
	{ "lock-during-synchronize", run_synchronize },
	{ "lock-stopped", run_stopped },
	{ NULL },
};
