// SPDX-License-Identifier: MIT
/* Restoring onto other GPUs: every visible GPU listed works, anything less is refused. */
#include <string.h>

#include "child.h"
#include "contract.h"
#include "driver.h"

enum { GPUS_MAX = 64 };

/* Each GPU becomes the next one. */
static unsigned int rotate(CUcheckpointGpuPair pairs[static GPUS_MAX])
{
	int n = driver_gpu_count();

	EXPECT(n <= GPUS_MAX);
	for (int i = 0; i < n; i++) {
		EXPECT(driver.cuDeviceGetUuid_v2(&pairs[i].oldUuid, i) == CUDA_SUCCESS);
		EXPECT(driver.cuDeviceGetUuid_v2(&pairs[i].newUuid, (i + 1) % n) == CUDA_SUCCESS);
	}
	return (unsigned int)n;
}

/* All of a line of the counter up to its step: which GPU it says it is on. */
static void gpu_said(const struct child *child, char ret[static 64])
{
	const char *gpu = strstr(child->last, "GPU-");

	EXPECT(gpu);
	size_t len = strcspn(gpu, " ");
	EXPECT(len < 64);
	memcpy(ret, gpu, len);
	ret[len] = '\0';
}

static void run_one_gpu(const char *argument)
{
	CUcheckpointGpuPair pairs[GPUS_MAX];
	char before[64], after[64];
	struct child child;

	START(&child, "counter", "--mib", "64", "--interval-ms", "20");
	child_goes_on(&child);
	gpu_said(&child, before);
	must_lock(child.pid);
	must_checkpoint(child.pid);
	EXPECT(do_restore(child.pid, pairs, rotate(pairs)) == CUDA_SUCCESS);
	EXPECT(state_of(child.pid) == CU_PROCESS_STATE_LOCKED);
	must_unlock(child.pid);
	child_goes_on(&child);
	gpu_said(&child, after);
	measured("new-uuid-seen-after-remap", strcmp(before, after) != 0);
	child_stop(&child);
}

static void run_both_gpus(const char *argument)
{
	CUcheckpointGpuPair pairs[GPUS_MAX];
	struct child child;

	START(&child, "kinds", "two-gpus");
	must_lock(child.pid);
	must_checkpoint(child.pid);
	EXPECT(do_restore(child.pid, pairs, rotate(pairs)) == CUDA_SUCCESS);
	must_unlock(child.pid);
	child_goes_on(&child);
	child_stop(&child);
}

/* A list the driver refuses leaves the process checkpointed; a right one brings it back, or not. */
static void refused_list(const char *name, const char *state_name, CUcheckpointGpuPair *pairs,
			 unsigned int n)
{
	CUcheckpointGpuPair all[GPUS_MAX];
	struct child child;

	START(&child, "kinds", "two-gpus");
	must_lock(child.pid);
	must_checkpoint(child.pid);
	measured(name, do_restore(child.pid, pairs, n));
	measured(state_name, state_of(child.pid));
	if (state_of(child.pid) != CU_PROCESS_STATE_CHECKPOINTED)
		return;
	if (do_restore(child.pid, all, rotate(all)) != CUDA_SUCCESS)
		fail("%s: the process is lost after it", name);
	must_unlock(child.pid);
	child_goes_on(&child);
	child_stop(&child);
}

static void run_one_listed(const char *argument)
{
	CUcheckpointGpuPair pairs[GPUS_MAX];

	rotate(pairs);
	refused_list("restore-one-of-several-listed", "restore-one-of-several-listed-state", pairs,
		     1);
}

static void run_unknown(const char *argument)
{
	CUcheckpointGpuPair pairs[GPUS_MAX];
	unsigned int n = rotate(pairs);

	memset(&pairs[0].newUuid, 0xee, sizeof(pairs[0].newUuid));
	refused_list("restore-unknown-gpu", "restore-unknown-gpu-state", pairs, n);
}

const struct contract_case gpu_cases[] = {
	{ "remap-one-gpu", run_one_gpu, NULL, NEEDS_TWO_GPUS },
	{ "remap-both-gpus", run_both_gpus, NULL, NEEDS_TWO_GPUS },
	{ "remap-one-listed", run_one_listed, NULL, NEEDS_TWO_GPUS | DESTRUCTIVE },
	{ "remap-unknown-gpu", run_unknown, NULL, NEEDS_TWO_GPUS | DESTRUCTIVE },
	{ NULL },
};
