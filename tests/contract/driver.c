// SPDX-License-Identifier: MIT
/* Loading the driver under test, and its checkpoint calls; see driver.h. */
#include "driver.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "contract.h"

struct driver driver;

const char *driver_library(void)
{
	const char *library = getenv("BRUMATE_CUDA_LIBRARY");

	return library && *library ? library : "libcuda.so.1";
}

void driver_open(void)
{
	static const struct {
		const char *name;
		void *slot;
	} calls[] = {
#define X(sym) { #sym, &driver.sym },
		DRIVER_CALLS(X)
#undef X
	};

	void *library = dlopen(driver_library(), RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fail("load %s: %s", driver_library(), dlerror());
	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		void *fn = dlsym(library, calls[i].name);
		if (!fn)
			fail("%s has no %s", driver_library(), calls[i].name);
		memcpy(calls[i].slot, &fn, sizeof(fn));
	}

	int r = driver.cuInit(0);
	if (r)
		fail("cuInit: %d", r);
}

int driver_gpu_count(void)
{
	int count = 0;

	EXPECT(driver.cuDeviceGetCount(&count) == CUDA_SUCCESS);
	return count;
}

int do_lock(pid_t pid, unsigned int timeout_ms)
{
	CUcheckpointLockArgs args = { .timeoutMs = timeout_ms };

	return driver.cuCheckpointProcessLock(pid, &args);
}

int do_checkpoint(pid_t pid)
{
	return driver.cuCheckpointProcessCheckpoint(pid, NULL);
}

int do_restore(pid_t pid, CUcheckpointGpuPair *pairs, unsigned int n_pairs)
{
	CUcheckpointRestoreArgs args = { .gpuPairs = pairs, .gpuPairsCount = n_pairs };

	return driver.cuCheckpointProcessRestore(pid, &args);
}

int do_unlock(pid_t pid)
{
	return driver.cuCheckpointProcessUnlock(pid, NULL);
}

int state_of(pid_t pid)
{
	CUprocessState state = CU_PROCESS_STATE_FAILED;
	int r = driver.cuCheckpointProcessGetState(pid, &state);

	if (r)
		fail("state of %d: %d", (int)pid, r);
	return state;
}

static void must(const char *call, int result, pid_t pid, int state)
{
	if (result)
		fail("%s of %d: %d, state %d", call, (int)pid, result, state_of(pid));
	if (state_of(pid) != state)
		fail("%s of %d: state %d after it, expected %d", call, (int)pid, state_of(pid),
		     state);
}

void must_lock(pid_t pid)
{
	must("lock", do_lock(pid, 10000), pid, CU_PROCESS_STATE_LOCKED);
}

void must_checkpoint(pid_t pid)
{
	must("checkpoint", do_checkpoint(pid), pid, CU_PROCESS_STATE_CHECKPOINTED);
}

void must_restore(pid_t pid)
{
	must("restore", do_restore(pid, NULL, 0), pid, CU_PROCESS_STATE_LOCKED);
}

void must_unlock(pid_t pid)
{
	must("unlock", do_unlock(pid), pid, CU_PROCESS_STATE_RUNNING);
}
