// SPDX-License-Identifier: MIT
/* The checkpoint calls of the driver under test, loaded from $BRUMATE_CUDA_LIBRARY. */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "driver-abi.h"

#define DRIVER_CALLS(X)                          \
	X(cuInit)                                \
	X(cuDeviceGetCount)                      \
	X(cuDeviceGetUuid_v2)                    \
	X(cuCheckpointProcessGetState)           \
	X(cuCheckpointProcessGetRestoreThreadId) \
	X(cuCheckpointProcessLock)               \
	X(cuCheckpointProcessCheckpoint)         \
	X(cuCheckpointProcessRestore)            \
	X(cuCheckpointProcessUnlock)

extern struct driver {
#define X(sym) __typeof__(sym) *sym;
	DRIVER_CALLS(X)
#undef X
} driver;

/** The library under test. */
const char *driver_library(void);

/** Loads and initialises the driver; fails the case if it cannot. */
void driver_open(void);

int driver_gpu_count(void);

/* The calls with their common arguments; each returns the driver's result. */
int do_lock(pid_t pid, unsigned int timeout_ms);
int do_checkpoint(pid_t pid);
int do_restore(pid_t pid, CUcheckpointGpuPair *pairs, unsigned int n_pairs);
int do_unlock(pid_t pid);

/** State of @pid; fails the case if the driver has none. */
int state_of(pid_t pid);

/* The calls as they must go: success, and the state that follows. */
void must_lock(pid_t pid);
void must_checkpoint(pid_t pid);
void must_restore(pid_t pid);
void must_unlock(pid_t pid);
