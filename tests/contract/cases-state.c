// SPDX-License-Identifier: MIT
/* What the driver says of processes that are not what a caller may think, and of calls out of turn. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "contract.h"
#include "driver.h"

static int result_of_state(pid_t pid)
{
	CUprocessState state;

	return driver.cuCheckpointProcessGetState(pid, &state);
}

static int result_of_restore_tid(pid_t pid, int *ret_tid)
{
	return driver.cuCheckpointProcessGetRestoreThreadId(pid, ret_tid);
}

/* A pid that was just here and is gone cannot be another's so soon. */
static void run_absent(const char *argument)
{
	struct child child;

	START(&child, "kinds", "none");
	pid_t pid = child.pid;
	child_stop(&child);
	measured("state-absent-pid", result_of_state(pid));
}

static void run_not_cuda(const char *argument)
{
	struct child child;
	int tid;

	START(&child, "kinds", "none");
	measured("state-not-cuda", result_of_state(child.pid));
	measured("restore-tid-not-cuda", result_of_restore_tid(child.pid, &tid));
	measured("lock-not-cuda", do_lock(child.pid, 1000));
	child_goes_on(&child);
}

static void run_ended_unreaped(const char *argument)
{
	struct child child;
	siginfo_t info;

	START(&child, "kinds", "plain");
	kill(child.pid, SIGTERM);
	EXPECT(waitid(P_PID, (id_t)child.pid, &info, WEXITED | WNOWAIT) == 0);
	measured("state-ended-unreaped", result_of_state(child.pid));
}

/* Initialised, no context: a state like any other, or none. It goes on in either case. */
static void run_initialised_only(const char *argument)
{
	struct child child;

	START(&child, "kinds", "idle");
	measured("state-initialised-only", result_of_state(child.pid));
	int locked = do_lock(child.pid, 1000);
	measured("lock-initialised-only", locked);
	if (locked == CUDA_SUCCESS) {
		int saved = do_checkpoint(child.pid);
		measured("checkpoint-initialised-only", saved);
		if (saved == CUDA_SUCCESS)
			must_restore(child.pid);
		must_unlock(child.pid);
	}
	child_goes_on(&child);
}

static bool is_thread_of(pid_t pid, pid_t tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d", (int)pid, (int)tid);
	return access(path, F_OK) == 0;
}

static pid_t other_thread_of(pid_t pid)
{
	char path[64];
	pid_t found = 0;

	snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
	DIR *dir = opendir(path);
	EXPECT(dir);
	for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
		if (atoi(entry->d_name) > 0 && atoi(entry->d_name) != pid)
			found = atoi(entry->d_name);
	closedir(dir);
	return found;
}

static void run_thread_id(const char *argument)
{
	struct child child;

	START(&child, "kinds", "threads");
	pid_t tid = other_thread_of(child.pid);
	EXPECT(tid > 0);
	measured("state-thread-id", result_of_state(tid));
	child_goes_on(&child);
}

/* CRIU must let this thread run while all others are stopped. */
static void run_restore_tid(const char *argument)
{
	struct child child;
	int tid = -1;

	START(&child, "kinds", "plain");
	int result = result_of_restore_tid(child.pid, &tid);
	measured("restore-tid-running", result);
	if (result == CUDA_SUCCESS)
		EXPECT(is_thread_of(child.pid, tid));
}

static void out_of_turn(const char *name, int result, pid_t pid, int state)
{
	measured(name, result);
	if (state_of(pid) != state)
		fail("%s: the state is %d after it, was %d", name, state_of(pid), state);
}

/* A call that does not fit the state is refused and changes nothing. */
static void run_out_of_turn(const char *argument)
{
	const int running = CU_PROCESS_STATE_RUNNING, locked = CU_PROCESS_STATE_LOCKED;
	const int saved = CU_PROCESS_STATE_CHECKPOINTED;
	struct child child;

	START(&child, "kinds", "plain");
	pid_t pid = child.pid;
	out_of_turn("checkpoint-running", do_checkpoint(pid), pid, running);
	out_of_turn("restore-running", do_restore(pid, NULL, 0), pid, running);
	out_of_turn("unlock-running", do_unlock(pid), pid, running);
	child_goes_on(&child);
	must_lock(pid);
	out_of_turn("lock-locked", do_lock(pid, 1000), pid, locked);
	out_of_turn("restore-locked", do_restore(pid, NULL, 0), pid, locked);
	must_checkpoint(pid);
	out_of_turn("lock-checkpointed", do_lock(pid, 1000), pid, saved);
	out_of_turn("checkpoint-checkpointed", do_checkpoint(pid), pid, saved);
	out_of_turn("unlock-checkpointed", do_unlock(pid), pid, saved);
	must_restore(pid);
	must_unlock(pid);
	child_goes_on(&child);
}

/* Restored and, without having run, saved again. */
static void run_saved_twice(const char *argument)
{
	struct child child;

	START(&child, "kinds", "plain");
	must_lock(child.pid);
	must_checkpoint(child.pid);
	must_restore(child.pid);
	must_checkpoint(child.pid);
	must_restore(child.pid);
	must_unlock(child.pid);
	child_goes_on(&child);
}

const struct contract_case state_cases[] = {
	{ "state-absent", run_absent },
	{ "state-not-cuda", run_not_cuda },
	{ "state-ended-unreaped", run_ended_unreaped },
	{ "state-initialised-only", run_initialised_only },
	{ "state-thread-id", run_thread_id },
	{ "restore-thread", run_restore_tid },
	{ "calls-out-of-turn", run_out_of_turn },
	{ "saved-again-before-unlock", run_saved_twice },
	{ NULL },
};
