// SPDX-License-Identifier: MIT
/* Kinds of programs that a driver must take down and bring back, twice, with their data right. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "child.h"
#include "contract.h"
#include "driver.h"

enum { ROUNDS = 2 };

/* A process without GPU state has none of the driver's devices mapped, or CRIU would refuse it. */
static void maps_no_gpu(pid_t pid)
{
	char path[64], line[4096];

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	FILE *file = fopen(path, "re");
	EXPECT(file);
	while (fgets(line, sizeof(line), file))
		if (strstr(line, "/dev/nvidia"))
			fail("after the checkpoint it still maps: %s", line);
	fclose(file);
}

static void cycle(struct child *child, const pid_t *pids, size_t n)
{
	for (size_t i = 0; i < n; i++)
		must_lock(pids[i]);
	for (size_t i = 0; i < n; i++) {
		must_checkpoint(pids[i]);
		maps_no_gpu(pids[i]);
	}
	child_stands_still(child);
	for (size_t i = 0; i < n; i++)
		must_restore(pids[i]);
	for (size_t i = 0; i < n; i++)
		must_unlock(pids[i]);
	child_goes_on(child);
}

static void run_cycle(const char *kind)
{
	struct child child;
	char path[128];

	snprintf(path, sizeof(path), "%s/handle", scratch_dir());
	START(&child, "kinds", kind, "--path", path);
	child_goes_on(&child);
	EXPECT(state_of(child.pid) == CU_PROCESS_STATE_RUNNING);
	for (int i = 0; i < ROUNDS; i++)
		cycle(&child, &child.pid, 1);
	child_stop(&child);
}

/* Parent and child both use the GPU: two processes for the driver, locked before either is saved. */
static void run_cycle_tree(const char *kind)
{
	struct child child;

	START(&child, "kinds", kind);
	child_goes_on(&child);
	EXPECT(child.own_child > 0);
	const pid_t pids[] = { child.pid, child.own_child };
	for (int i = 0; i < ROUNDS; i++)
		cycle(&child, pids, 2);
	child_stop(&child);
}

static void run_cycle_counter(const char *argument)
{
	struct child child;

	START(&child, "counter", "--mib", "256", "--chunk-mib", "32", "--interval-ms", "20");
	for (int i = 0; i < ROUNDS; i++)
		cycle(&child, &child.pid, 1);
	child_stop(&child);
}

/* Locked and let go again, with nothing saved. */
static void run_lock_unlock(const char *kind)
{
	struct child child;

	START(&child, "kinds", kind);
	for (int i = 0; i < ROUNDS; i++) {
		must_lock(child.pid);
		child_stands_still(&child);
		must_unlock(child.pid);
		child_goes_on(&child);
	}
	child_stop(&child);
}

const struct contract_case cycle_cases[] = {
	{ "cycle-counter", run_cycle_counter },
	{ "cycle-plain", run_cycle, "plain" },
	{ "cycle-big-many", run_cycle, "big-many" },
	{ "cycle-async", run_cycle, "async" },
	{ "cycle-pinned", run_cycle, "pinned" },
	{ "cycle-vmm", run_cycle, "vmm" },
	{ "cycle-event", run_cycle, "event-exported" },
	{ "cycle-ipc-export", run_cycle, "ipc-export" },
	{ "cycle-graph", run_cycle, "graph" },
	{ "cycle-streams", run_cycle, "streams" },
	{ "cycle-threads", run_cycle, "threads" },
	{ "cycle-fork-child", run_cycle, "fork-child" },
	{ "cycle-fork-after", run_cycle, "fork-after" },
	{ "cycle-fork-before", run_cycle_tree, "fork-before" },
	{ "cycle-two-gpus", run_cycle, "two-gpus", NEEDS_TWO_GPUS },
	{ "lock-unlock-plain", run_lock_unlock, "plain" },
	{ "lock-unlock-streams", run_lock_unlock, "streams" },
	{ NULL },
};
