// SPDX-License-Identifier: MIT
/* Death in the middle of a checkpoint: of the caller, and of the process itself. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "child.h"
#include "contract.h"
#include "driver.h"

enum { SETTLE_MS = 15000, MIDDLE_MS = 250, LOOK_EACH_MS = 20 };

/* Memory enough that saving it takes a second or two; the simulated driver is told to be as slow. */
static void start_big(struct child *ret)
{
	setenv("BRUMATE_SIM_GBPS", "0.2,2", 1);
	START(ret, "counter", "--mib", measuring() ? "4096" : "256");
	must_lock(ret->pid);
}

/* The call has been under way for a while when this returns: there is no event that tells. */
static void until_the_middle(struct child *actor)
{
	poll(NULL, 0, MIDDLE_MS);
}

static int settled_state(pid_t pid)
{
	uint64_t deadline_ns = deadline_in_ms(SETTLE_MS);

	while (state_of(pid) != CU_PROCESS_STATE_CHECKPOINTED && deadline_left_ms(deadline_ns) > 0)
		poll(NULL, 0, LOOK_EACH_MS);
	return state_of(pid);
}

/* The driver works in the target: it finishes without the caller, and another caller goes on. */
static void run_caller_killed(const char *argument)
{
	struct child child, actor;

	start_big(&child);
	actor_start(&actor, "checkpoint", child.pid);
	until_the_middle(&actor);
	child_kill(&actor);

	int state = settled_state(child.pid);
	measured("caller-killed-state", state);
	if (state == CU_PROCESS_STATE_LOCKED)
		must_checkpoint(child.pid);
	must_restore(child.pid);
	must_unlock(child.pid);
	child_goes_on(&child);
	child_stop(&child);
}

static int result_said(const struct child *actor)
{
	int result;

	if (sscanf(actor->last, "result %d", &result) != 1)
		fail("the caller said: %s", actor->last);
	return result;
}

static void run_target_killed(const char *argument)
{
	struct child child, actor;
	CUprocessState state;
	int status;

	start_big(&child);
	pid_t pid = child.pid;
	actor_start(&actor, "checkpoint", pid);
	until_the_middle(&actor);
	child_kill(&child);
	if (!child_wait(&actor, SETTLE_MS, &status))
		fail("the caller is stuck: its target was killed");
	EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	measured("target-killed-result", result_said(&actor));
	measured("target-killed-state", driver.cuCheckpointProcessGetState(pid, &state));
}

/* Saved, then killed: its memory is gone with it, and nothing is left in the driver. */
static void run_killed_when_saved(const char *argument)
{
	struct child child, next;

	start_big(&child);
	must_checkpoint(child.pid);
	child_kill(&child);
	START(&next, "counter", "--mib", measuring() ? "4096" : "256");
	child_goes_on(&next);
	child_stop(&next);
}

const struct contract_case killed_cases[] = {
	{ "caller-killed", run_caller_killed },
	{ "target-killed", run_target_killed },
	{ "killed-when-saved", run_killed_when_saved },
	{ NULL },
};
