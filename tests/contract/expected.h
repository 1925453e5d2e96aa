// SPDX-License-Identifier: MIT
/*
 * Results of the driver that its documentation leaves open. The one place to correct when hardware
 * says otherwise: `contract --measure` prints these names with what it saw. Results of calls are the
 * driver's numbers, states are those of CUprocessState, yes/no is 1/0.
 */
#pragma once

static const struct expected {
	const char *name;
	int number;
} expected[] = {
	/* Asking for the state of what is not a running CUDA process. */
	{ "state-absent-pid", 304 },
	{ "state-not-cuda", 3 },
	{ "state-thread-id", 0 },
	{ "state-initialised-only", 0 },
	{ "state-ended-unreaped", 3 },
	{ "restore-tid-running", 0 },
	{ "restore-tid-not-cuda", 3 },
	{ "lock-not-cuda", 3 },
	{ "lock-initialised-only", 0 },
	{ "checkpoint-initialised-only", 0 },
	/* Calls that do not fit the state. */
	{ "checkpoint-running", 401 },
	{ "restore-running", 401 },
	{ "unlock-running", 401 },
	{ "lock-locked", 401 },
	{ "restore-locked", 401 },
	{ "lock-checkpointed", 401 },
	{ "checkpoint-checkpointed", 401 },
	{ "unlock-checkpointed", 401 },
	/* Locking while something is under way. */
	{ "lock-during-kernel", 600 },
	{ "lock-during-callback", 600 },
	{ "lock-during-synchronize", 600 },
	{ "lock-stopped", 0 },
	{ "lock-stopped-heeds-timeout", 0 },
	/* Too little memory at restore. */
	{ "restore-out-of-memory", 2 },
	{ "restore-out-of-memory-state", 2 },
	{ "restore-when-memory-is-back", 304 },
	/* Restoring onto other GPUs. */
	{ "restore-one-of-several-listed", 1 },
	{ "restore-one-of-several-listed-state", 2 },
	{ "restore-unknown-gpu", 1 },
	{ "restore-unknown-gpu-state", 2 },
	{ "new-uuid-seen-after-remap", 1 },
	/* The worst that was seen: a runtime program with 4 GiB on each GPU. The suite's own came back. */
	{ "restore-with-peer-access", 1 },
	{ "restore-with-host-memory", 999 },
	/* Deaths in the middle. */
	{ "caller-killed-state", 2 },
	{ "target-killed-result", 304 },
	{ "target-killed-state", 304 },
};
