// SPDX-License-Identifier: MIT
/*
 * What the tests of the simulated driver share: the driver loaded from the build directory, a
 * machine of its own for each test, and a child process that uses the driver while the test looks on.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/types.h>

#include "check.h"
#include "driver-abi.h"

#define MIB ((size_t)1 << 20)

/* clang-format off */
#define DRIVER_CALLS(X) \
	X(cuInit) X(cuDriverGetVersion) X(cuGetErrorName) X(cuGetProcAddress_v2) \
	X(cuDeviceGetCount) X(cuDeviceGetUuid_v2) X(cuDeviceGetName) X(cuDevicePrimaryCtxRetain) \
	X(cuDevicePrimaryCtxRelease_v2) X(cuCtxSetCurrent) X(cuCtxSynchronize) X(cuCtxGetLimit) \
	X(cuCtxSetLimit) X(cuCtxEnablePeerAccess) X(cuCtxDisablePeerAccess) X(cuMemGetInfo_v2) \
	X(cuMemAlloc_v2) X(cuMemFree_v2) X(cuMemAllocHost_v2) X(cuMemFreeHost) \
	X(cuMemHostRegister_v2) X(cuMemHostUnregister) X(cuMemAllocManaged) X(cuMemAllocAsync) \
	X(cuMemFreeAsync) X(cuMemGetAddressRange_v2) X(cuPointerGetAttribute) X(cuMemcpyHtoD_v2) \
	X(cuMemcpyDtoH_v2) X(cuMemcpyDtoD_v2) X(cuMemcpyHtoDAsync_v2) X(cuMemcpy2D_v2) \
	X(cuMemsetD8_v2) X(cuMemsetD32_v2) X(cuMemsetD32Async) X(cuStreamCreate) \
	X(cuStreamDestroy_v2) X(cuStreamSynchronize) X(cuStreamQuery) X(cuStreamWaitEvent) \
	X(cuStreamAddCallback) X(cuLaunchHostFunc) X(cuStreamBeginCapture_v2) \
	X(cuThreadExchangeStreamCaptureMode) X(cuStreamEndCapture) X(cuStreamIsCapturing) \
	X(cuEventCreate) X(cuEventRecord) X(cuEventQuery) X(cuEventSynchronize) \
	X(cuEventElapsedTime) X(cuEventDestroy_v2) X(cuModuleLoadData) X(cuModuleUnload) \
	X(cuModuleGetFunction) X(cuModuleGetGlobal_v2) X(cuLaunchKernel) \
	X(cuGraphInstantiateWithFlags) X(cuGraphLaunch) X(cuGraphDestroy) X(cuGraphExecDestroy) \
	X(cuMemAddressReserve) X(cuMemAddressFree) X(cuMemCreate) X(cuMemRelease) X(cuMemMap) \
	X(cuMemUnmap) X(cuMemSetAccess) X(cuMemExportToShareableHandle) \
	X(cuMemImportFromShareableHandle) X(cuMemRetainAllocationHandle) X(cuIpcGetMemHandle) \
	X(cuIpcOpenMemHandle_v2) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle) \
	X(cuIpcOpenEventHandle) X(cuCheckpointProcessGetState) \
	X(cuCheckpointProcessGetRestoreThreadId) X(cuCheckpointProcessLock) \
	X(cuCheckpointProcessCheckpoint) X(cuCheckpointProcessRestore) X(cuCheckpointProcessUnlock)
/* clang-format on */

struct driver {
#define X(name) __typeof__(name) *name;
	DRIVER_CALLS(X)
#undef X
};

/** The driver of this process, once load_driver() has run. */
extern struct driver cu;

/** Loads the driver; nothing before it depends on the environment. */
void load_driver(void);

/** Loads and initialises it, with the primary context of @device current; returns the context. */
CUcontext start_driver(int device);

/** A machine for this test alone: a fresh BRUMATE_SIM_DIR, removed when the test ends. */
void make_machine(const char *vram_mib);

/** Bytes free on the GPU of the current context. */
size_t free_bytes(void);

/** The module of the kernels that tests use, and its functions. */
CUmodule load_kernels(void);
CUfunction kernel(CUmodule module, const char *name);
#define LAUNCH(fn, stream, ...)                                                     \
	({                                                                          \
		void *params_[] = { __VA_ARGS__ };                                  \
		cu.cuLaunchKernel(fn, 1, 1, 1, 32, 1, 1, 0, stream, params_, NULL); \
	})

/** What a child does; it talks with the test by say() and hear(). Ends with an entry of NULL. */
struct child_body {
	const char *name;
	void (*run)(int socket);
};

/** First thing in main(): a child is the same program anew, since a fork could not use the driver. */
void child_main(int argc, char **argv, const struct child_body *bodies);

struct child {
	pid_t pid;
	int socket;
};
void child_start(struct child *ret, const char *body);
void child_end(struct child *child);  /* tells it to end, and that it ended well */
void child_kill(struct child *child); /* SIGKILL, reaped */
void say(int socket, uint64_t value);
uint64_t hear(int socket); /* ends the process if the peer is gone */
void send_fd(int socket, int fd);
int receive_fd(int socket);

CUresult lock(pid_t pid, unsigned int timeout_ms);
CUresult checkpoint(pid_t pid);
CUresult restore(pid_t pid);
CUresult unlock(pid_t pid);
int state(pid_t pid); /* CUprocessState, or minus the result */

/** Locks, saves, restores and unlocks, and checks that each of it succeeds. */
void cycle(pid_t pid);
