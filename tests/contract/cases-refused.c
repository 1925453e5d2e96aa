// SPDX-License-Identifier: MIT
/* What the driver refuses, and what it takes and cannot bring back. */
#include <stdio.h>

#include "child.h"
#include "contract.h"
#include "driver.h"

static void run_managed(const char *argument)
{
	struct child child;

	START(&child, "kinds", "managed");
	child_goes_on(&child);
	must_lock(child.pid);
	int result = do_checkpoint(child.pid);
	if (result != CUDA_ERROR_NOT_SUPPORTED)
		fail("checkpoint of managed memory: %d, expected 801", result);
	EXPECT(state_of(child.pid) == CU_PROCESS_STATE_LOCKED);
	must_unlock(child.pid);
	child_goes_on(&child);
}

/* Saved without complaint, and lost: the state stays, nothing moves it any more. */
static void is_lost(struct child *child)
{
	EXPECT(state_of(child->pid) == CU_PROCESS_STATE_CHECKPOINTED);
	EXPECT(do_restore(child->pid, NULL, 0) != CUDA_SUCCESS);
	EXPECT(do_unlock(child->pid) == CUDA_ERROR_ILLEGAL_STATE);
	EXPECT(state_of(child->pid) == CU_PROCESS_STATE_CHECKPOINTED);
	child_kill(child);
}

static void run_ipc(const char *argument)
{
	struct child exporter, importer;
	char path[128];

	snprintf(path, sizeof(path), "%s/handle", scratch_dir());
	START(&exporter, "kinds", "ipc-export", "--path", path);
	START(&importer, "kinds", "ipc-import", "--path", path);
	child_goes_on(&importer);
	must_lock(exporter.pid);
	must_lock(importer.pid);
	must_checkpoint(exporter.pid);
	must_checkpoint(importer.pid);
	must_restore(exporter.pid);
	must_unlock(exporter.pid);
	child_goes_on(&exporter);
	int result = do_restore(importer.pid, NULL, 0);
	if (result != CUDA_ERROR_INVALID_VALUE)
		fail("restore: %d, expected 1", result);
	is_lost(&importer);
}

/* Some such processes are lost and some come back, on one driver; what decides is not known. */
static void run_peer(const char *argument)
{
	struct child child;

	START(&child, "kinds", "peer");
	child_goes_on(&child);
	must_lock(child.pid);
	must_checkpoint(child.pid);
	int result = do_restore(child.pid, NULL, 0);
	measured("restore-with-peer-access", result);
	if (result != CUDA_SUCCESS) {
		is_lost(&child);
		return;
	}
	must_unlock(child.pid);
	child_goes_on(&child);
}

/* Host memory by cuMemCreate, which nobody else has. */
static void run_vmm_host(const char *argument)
{
	struct child child;

	START(&child, "kinds", "vmm-host");
	child_goes_on(&child);
	must_lock(child.pid);
	must_checkpoint(child.pid);
	int result = do_restore(child.pid, NULL, 0);
	EXPECT(result != CUDA_SUCCESS);
	measured("restore-with-host-memory", result);
	is_lost(&child);
}

/* The fd of exported memory stays open in the process. */
static void run_vmm_exported(const char *argument)
{
	struct child child;

	START(&child, "kinds", "vmm-exported");
	must_lock(child.pid);
	must_checkpoint(child.pid);
	must_restore(child.pid);
	must_unlock(child.pid);
	child_goes_on(&child);
}

/*
 * Another program has taken the memory meanwhile. What becomes of the process then, and whether a
 * second try works once the memory is back, is the driver's to tell.
 */
static void run_out_of_memory(const char *argument)
{
	struct child child, hog;

	START(&child, "counter", "--mib", "256");
	must_lock(child.pid);
	must_checkpoint(child.pid);
	START(&hog, "hog", "--leave-mib", "64");

	int result = do_restore(child.pid, NULL, 0);
	EXPECT(result != CUDA_SUCCESS);
	measured("restore-out-of-memory", result);
	measured("restore-out-of-memory-state", state_of(child.pid));
	child_stop(&hog);
	result = do_restore(child.pid, NULL, 0);
	measured("restore-when-memory-is-back", result);
	if (result == CUDA_SUCCESS) {
		must_unlock(child.pid);
		child_goes_on(&child);
	}
}

/* A checkpoint gives the memory back: another program gets at it. */
static void run_memory_given_back(const char *argument)
{
	struct child child, first, second;

	START(&child, "counter", "--mib", "512");
	START(&first, "hog", "--leave-mib", "64");
	must_lock(child.pid);
	must_checkpoint(child.pid);
	START(&second, "hog", "--mib", "384");
	child_stop(&second);
	child_stop(&first);
	must_restore(child.pid);
	must_unlock(child.pid);
	child_goes_on(&child);
}

const struct contract_case refused_cases[] = {
	{ "managed-refused", run_managed },
	{ "memory-given-back", run_memory_given_back },
	{ "vmm-exported", run_vmm_exported },
	{ "vmm-host-lost", run_vmm_host, NULL, DESTRUCTIVE },
	{ "ipc-importer-lost", run_ipc, NULL, DESTRUCTIVE },
	{ "peer-access", run_peer, NULL, NEEDS_TWO_GPUS | DESTRUCTIVE },
	{ "restore-out-of-memory", run_out_of_memory, NULL, DESTRUCTIVE },
	{ NULL },
};
