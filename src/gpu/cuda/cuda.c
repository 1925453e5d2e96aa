// SPDX-License-Identifier: MIT
/*
 * The CUDA backend: the driver's checkpoint calls, loaded by dlopen(3) into a typed table. It never
 * creates a context (each costs half a gigabyte of device memory) and never unloads the driver.
 */
#include "gpu/cuda/private.h"
#include "gpu/copy.h"
#include "gpu/cuda/abi.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/symbols.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRIVER_CALLS(X)       \
	X(cuInit)             \
	X(cuDriverGetVersion) \
	X(cuGetErrorName)     \
	X(cuGetErrorString)   \
	X(cuDeviceGet)        \
	X(cuDeviceGetCount)   \
	X(cuDeviceGetName)    \
	X(cuDeviceGetUuid_v2) \
	X(cuDeviceTotalMem_v2)

#define CHECKPOINT_CALLS(X)                      \
	X(cuCheckpointProcessGetState)           \
	X(cuCheckpointProcessGetRestoreThreadId) \
	X(cuCheckpointProcessLock)               \
	X(cuCheckpointProcessCheckpoint)         \
	X(cuCheckpointProcessRestore)            \
	X(cuCheckpointProcessUnlock)

static struct {
#define X(name) __typeof__(name) *name;
	DRIVER_CALLS(X)
	CHECKPOINT_CALLS(X)
#undef X
} cu;

static void *driver_library; /* set before the backend counts as open */

void *cuda_library(void)
{
	return driver_library;
}

/* The driver's errors for a process that is not its client, or has ended: see docs/driver-behaviour.md. */
static const CUresult not_a_client[] = {
	CUDA_ERROR_NOT_INITIALIZED,
	CUDA_ERROR_OPERATING_SYSTEM,
};

static const enum dev_state states[] = {
	[CU_PROCESS_STATE_RUNNING] = DEV_STATE_RUNNING,
	[CU_PROCESS_STATE_LOCKED] = DEV_STATE_LOCKED,
	[CU_PROCESS_STATE_CHECKPOINTED] = DEV_STATE_CHECKPOINTED,
	[CU_PROCESS_STATE_FAILED] = DEV_STATE_FAILED,
};

static const struct {
	CUresult result;
	int code;
	const char *hint;
} init_failures[] = {
	{ CUDA_ERROR_STUB_LIBRARY, ENODEV,
	  "libcuda.so.1 is the stub for linking: put the driver's own before it in the search "
	  "path" },
	{ CUDA_ERROR_NO_DEVICE, ENODEV,
	  "check `nvidia-smi -L`, and that /dev/nvidia* exist in this container" },
	{ CUDA_ERROR_SYSTEM_NOT_READY, ENODEV, "start nvidia-fabricmanager, or wait for it" },
	{ CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, EOPNOTSUPP,
	  "the driver's library and its kernel module differ in version: reload the module or "
	  "reboot" },
	{ CUDA_ERROR_UNKNOWN, EIO, "see the kernel log for NVRM lines; is nvidia-uvm loaded?" },
};

static const char *error_name(CUresult result)
{
	const char *name = NULL;

	if (cu.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
		return "unknown error";
	return name;
}

static int fail_call(struct brumate_error *err, int code, const char *call, CUresult result)
{
	const char *text = NULL;

	cu.cuGetErrorString(result, &text);
	return brumate_fail(err, code, "%s: %s (%d)%s%s", call, error_name(result), (int)result,
			    text ? ": " : "", text ? text : "");
}

/* Both return the name of the first call that is missing, or NULL. */
static const char *resolve_driver(void *library)
{
	const struct symbol calls[] = {
#define X(name) { #name, (void **)&cu.name },
		DRIVER_CALLS(X)
#undef X
	};

	return symbols_resolve(library, calls, sizeof(calls) / sizeof(calls[0]));
}

static const char *resolve_checkpoint(void *library)
{
	const struct symbol calls[] = {
#define X(name) { #name, (void **)&cu.name },
		CHECKPOINT_CALLS(X)
#undef X
	};

	return symbols_resolve(library, calls, sizeof(calls) / sizeof(calls[0]));
}

/* The release is in the file name that libcuda.so.1 refers to ("libcuda.so.580.159.04"). */
static void version_by_file(void *library, char *ret, size_t room)
{
	struct link_map *map;

	*ret = '\0';
	if (dlinfo(library, RTLD_DI_LINKMAP, &map) < 0)
		return;
	auto_free char *path = realpath(map->l_name, NULL);
	const char *so = path ? strstr(path, ".so.") : NULL;
	if (so && atoi(so + strlen(".so.")) > 1)
		snprintf(ret, room, "%s", so + strlen(".so."));
}

static void fill_version(struct dev_info *info, void *library)
{
	nvml_driver_version(info->driver_version, sizeof(info->driver_version));
	if (!info->driver_version[0])
		version_by_file(library, info->driver_version, sizeof(info->driver_version));
	cu.cuDriverGetVersion(&info->api_version);
}

static int fail_too_old(const struct dev_info *info, const char *missing, struct brumate_error *err)
{
	int r = brumate_fail(err, EOPNOTSUPP,
			     "NVIDIA driver %s (CUDA %d.%d) is too old: it has no %s",
			     info->driver_version[0] ? info->driver_version : "of unknown release",
			     info->api_version / 1000, info->api_version % 1000 / 10, missing);

	brumate_hint(err, "install driver 570 or newer (580 to restore onto other GPUs)");
	return r;
}

static uint32_t features_of(const struct dev_info *info)
{
	int release = atoi(info->driver_version);
	uint32_t features = DEV_CHECKPOINT;

	for (size_t i = 0; i < CUDA_RELEASES; i++)
		if (release ? release >= atoi(cuda_releases[i].release)
			    : info->api_version >= cuda_releases[i].api)
			features |= cuda_releases[i].feature;
	return features;
}

static int init_driver(struct dev_info *info, struct brumate_error *err)
{
	uint64_t start_ns = clock_now_ns();
	CUresult result = cu.cuInit(0);

	info->init_seconds = clock_since_s(start_ns);
	if (result == CUDA_SUCCESS)
		return 0;
	for (size_t i = 0; i < sizeof(init_failures) / sizeof(init_failures[0]); i++) {
		if (init_failures[i].result != result)
			continue;
		int r = fail_call(err, init_failures[i].code, "cuInit", result);
		brumate_hint(err, "%s", init_failures[i].hint);
		brumate_error_exit(err, EXIT_UNSUPPORTED);
		return r;
	}
	return fail_call(err, EIO, "cuInit", result);
}

static int cuda_open(const struct dev_libraries *libraries, struct dev_info *ret,
		     struct brumate_error *err)
{
	struct dev_info info = { .simulated = libraries->simulated };
	void *library = dlopen(libraries->driver ? libraries->driver : "libcuda.so.1",
			       RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		int r = brumate_fail(err, ENODEV,
				     "no NVIDIA driver: libcuda.so.1 cannot be loaded: %s",
				     dlerror());
		brumate_hint(err,
			     "install the driver, or use the simulated GPU: BRUMATE_GPU=simulated");
		brumate_error_exit(err, EXIT_UNSUPPORTED);
		return r;
	}
	const char *missing = resolve_driver(library);
	if (missing)
		return fail_too_old(&info, missing, err);

	nvml_open(libraries->management);
	fill_version(&info, library);
	missing = resolve_checkpoint(library);
	if (missing)
		return fail_too_old(&info, missing, err);
	info.features = features_of(&info);

	driver_library = library;
	int r = init_driver(&info, err);
	if (r == 0)
		*ret = info;
	return r;
}

static int get_gpu(int ordinal, struct dev_gpu *ret, struct brumate_error *err)
{
	struct dev_gpu gpu = { 0 };
	CUdevice device;
	CUuuid uuid;
	size_t total = 0;
	const char *call = "cuDeviceGet";
	CUresult result = cu.cuDeviceGet(&device, ordinal);

	if (result == CUDA_SUCCESS) {
		call = "cuDeviceGetUuid";
		result = cu.cuDeviceGetUuid_v2(&uuid, device);
	}
	if (result == CUDA_SUCCESS) {
		call = "cuDeviceGetName";
		result = cu.cuDeviceGetName(gpu.name, sizeof(gpu.name), device);
	}
	if (result == CUDA_SUCCESS) {
		call = "cuDeviceTotalMem";
		result = cu.cuDeviceTotalMem_v2(&total, device);
	}
	if (result != CUDA_SUCCESS)
		return fail_call(err, EIO, call, result);

	dev_uuid_format(gpu.uuid, (const uint8_t *)uuid.bytes);
	gpu.total_bytes = total;
	nvml_fill_gpu(&gpu);
	*ret = gpu;
	return 0;
}

static int cuda_gpus(struct dev_gpu *ret, size_t max, size_t *ret_n, struct brumate_error *err)
{
	int n = 0;
	CUresult result = cu.cuDeviceGetCount(&n);

	if (result != CUDA_SUCCESS)
		return fail_call(err, EIO, "cuDeviceGetCount", result);
	for (int i = 0; i < n && (size_t)i < max; i++) {
		int r = get_gpu(i, &ret[i], err);

		if (r < 0)
			return brumate_wrap(err, r, "GPU %d", i);
	}
	*ret_n = (size_t)n < max ? (size_t)n : max;
	return 0;
}

static enum dev_state state_by_error(CUresult result)
{
	for (size_t i = 0; i < sizeof(not_a_client) / sizeof(not_a_client[0]); i++)
		if (result == not_a_client[i])
			return DEV_STATE_NONE;
	return DEV_STATE_UNKNOWN;
}

static int cuda_state(pid_t pid, enum dev_state *ret, struct brumate_error *err)
{
	CUprocessState state;

	if (kill(pid, 0) < 0 && errno == ESRCH) {
		*ret = DEV_STATE_NONE;
		return 0;
	}
	CUresult result = cu.cuCheckpointProcessGetState(pid, &state);
	if (result != CUDA_SUCCESS)
		*ret = state_by_error(result);
	else
		*ret = state < sizeof(states) / sizeof(states[0]) ? states[state]
								  : DEV_STATE_UNKNOWN;
	return 0;
}

static int cuda_process(pid_t pid, struct dev_process *ret, struct brumate_error *err)
{
	int tid = 0, r = cuda_state(pid, &ret->state, err);

	if (r < 0)
		return r;
	ret->restore_tid = 0;
	ret->used_bytes = 0;
	ret->n_gpus = 0;
	if (ret->state == DEV_STATE_NONE)
		return 0;
	if (cu.cuCheckpointProcessGetRestoreThreadId(pid, &tid) == CUDA_SUCCESS)
		ret->restore_tid = tid;
	nvml_fill_process(pid, ret);
	return 0;
}

static void cuda_usage(pid_t pid, struct dev_process *ret)
{
	ret->used_bytes = 0;
	ret->n_gpus = 0;
	nvml_fill_process(pid, ret);
}

/* @pairs: one for each visible GPU (dev_map_complete()), as the driver requires. */
static CUresult restore(pid_t pid, const struct dev_gpu_pair *pairs, size_t n_pairs)
{
	CUcheckpointGpuPair list[DEV_GPUS_MAX];
	CUcheckpointRestoreArgs args = { 0 };

	for (size_t i = 0; i < n_pairs; i++) {
		if (dev_uuid_parse((uint8_t *)list[i].oldUuid.bytes, pairs[i].from) < 0 ||
		    dev_uuid_parse((uint8_t *)list[i].newUuid.bytes, pairs[i].to) < 0)
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (n_pairs) {
		args.gpuPairs = list;
		args.gpuPairsCount = (unsigned int)n_pairs;
	}
	return cu.cuCheckpointProcessRestore(pid, &args);
}

static CUresult act(pid_t pid, enum dev_action action, uint32_t timeout_ms,
		    const struct dev_gpu_pair *pairs, size_t n_pairs)
{
	CUcheckpointLockArgs lock = { .timeoutMs = timeout_ms };
	CUcheckpointCheckpointArgs checkpoint = { 0 };
	CUcheckpointUnlockArgs unlock = { 0 };

	switch (action) {
	case DEV_LOCK:
		return cu.cuCheckpointProcessLock(pid, &lock);
	case DEV_DO_CHECKPOINT:
		return cu.cuCheckpointProcessCheckpoint(pid, &checkpoint);
	case DEV_RESTORE:
		return restore(pid, pairs, n_pairs);
	case DEV_UNLOCK:
		return cu.cuCheckpointProcessUnlock(pid, &unlock);
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static int cuda_act(pid_t pid, enum dev_action action, uint32_t timeout_ms,
		    const struct dev_gpu_pair *pairs, size_t n_pairs, struct dev_result *ret,
		    struct brumate_error *err)
{
	if (n_pairs > DEV_GPUS_MAX)
		return brumate_fail(err, EINVAL, "GPU map: more than %d GPUs", DEV_GPUS_MAX);

	CUresult result = act(pid, action, timeout_ms, pairs, n_pairs);
	ret->number = (int)result;
	snprintf(ret->name, sizeof(ret->name), "%s", error_name(result));
	return 0;
}

static void see_all_gpus(void)
{
	unsetenv("CUDA_VISIBLE_DEVICES");
	setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
}

static void keep_kernels_in(const char *dir)
{
	setenv("CUDA_CACHE_PATH", dir, 0);
}

const struct dev_backend dev_cuda = {
	.name = "cuda",
	.see_all_gpus = see_all_gpus,
	.keep_kernels_in = keep_kernels_in,
	.open = cuda_open,
	.gpus = cuda_gpus,
	.process = cuda_process,
	.state = cuda_state,
	.usage = cuda_usage,
	.act = cuda_act,
	.memory = &dev_cuda_memory,
};
