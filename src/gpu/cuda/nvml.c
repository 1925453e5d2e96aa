// SPDX-License-Identifier: MIT
/*
 * What NVIDIA's management library knows in addition to the driver: memory in use, processes, MIG mode. All of it is
 * optional: without the library, or if a call fails, the answer stays empty.
 */
#include "gpu/cuda/private.h"
#include "gpu/cuda/abi.h"
#include "base/log.h"
#include "base/symbols.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define NVML_CALLS(X)                              \
	X(nvmlInit_v2)                             \
	X(nvmlErrorString)                         \
	X(nvmlSystemGetDriverVersion)              \
	X(nvmlDeviceGetCount_v2)                   \
	X(nvmlDeviceGetHandleByIndex_v2)           \
	X(nvmlDeviceGetUUID)                       \
	X(nvmlDeviceGetMemoryInfo)                 \
	X(nvmlDeviceGetComputeRunningProcesses_v3) \
	X(nvmlDeviceGetMigMode)

static struct {
#define X(name) __typeof__(name) *name;
	NVML_CALLS(X)
#undef X
} nvml;

enum { PROCESSES_MAX = 1024 };

static unsigned int n_devices; /* 0: no NVML */

static bool resolve(void *library)
{
	const struct symbol calls[] = {
#define X(name) { #name, (void **)&nvml.name },
		NVML_CALLS(X)
#undef X
	};

	const char *missing = symbols_resolve(library, calls, sizeof(calls) / sizeof(calls[0]));
	if (missing)
		log_debug("nvml: no %s", missing);
	return !missing;
}

void nvml_open(const char *name)
{
	void *library = dlopen(name ? name : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);

	if (!library) {
		log_debug("nvml: %s", dlerror());
		return;
	}
	if (!resolve(library)) {
		dlclose(library);
		return;
	}
	nvmlReturn_t r = nvml.nvmlInit_v2();
	if (r == NVML_SUCCESS)
		r = nvml.nvmlDeviceGetCount_v2(&n_devices);
	if (r != NVML_SUCCESS) {
		log_debug("nvml: %s", nvml.nvmlErrorString(r));
		n_devices = 0;
	}
}

void nvml_driver_version(char *ret, size_t room)
{
	char version[NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE] = "";

	if (n_devices && nvml.nvmlSystemGetDriverVersion(version, sizeof(version)) != NVML_SUCCESS)
		version[0] = '\0';
	snprintf(ret, room, "%.*s", (int)room - 1, version);
}

static bool get_device(unsigned int i, nvmlDevice_t *ret, char uuid[static DEV_UUID_TEXT_BYTES])
{
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];

	if (nvml.nvmlDeviceGetHandleByIndex_v2(i, ret) != NVML_SUCCESS ||
	    nvml.nvmlDeviceGetUUID(*ret, text, sizeof(text)) != NVML_SUCCESS)
		return false;
	snprintf(uuid, DEV_UUID_TEXT_BYTES, "%.*s", DEV_UUID_TEXT_BYTES - 1, text);
	return true;
}

static bool has_mig(nvmlDevice_t device)
{
	unsigned int current = NVML_DEVICE_MIG_DISABLE, pending;

	return nvml.nvmlDeviceGetMigMode(device, &current, &pending) == NVML_SUCCESS &&
	       current == NVML_DEVICE_MIG_ENABLE;
}

void nvml_fill_gpu(struct dev_gpu *gpu)
{
	bool known = false, any_mig = false;

	for (unsigned int i = 0; i < n_devices && !known; i++) {
		char uuid[DEV_UUID_TEXT_BYTES];
		nvmlDevice_t device;
		nvmlMemory_t memory;

		if (!get_device(i, &device, uuid))
			continue;
		any_mig = any_mig || has_mig(device);
		known = !strcmp(uuid, gpu->uuid);
		if (!known)
			continue;
		gpu->partitioned = has_mig(device);
		if (nvml.nvmlDeviceGetMemoryInfo(device, &memory) == NVML_SUCCESS) {
			gpu->total_bytes = memory.total;
			gpu->used_bytes = memory.used;
		}
	}
	/* For an instance of a divided GPU, the driver's UUID is not that of any GPU here. */
	if (!known && any_mig)
		gpu->partitioned = true;
}

/* Memory of @pid on @device. 0 may also mean that it is not among the device's processes: see @ret_found. */
static uint64_t bytes_of(nvmlDevice_t device, pid_t pid, bool *ret_found)
{
	nvmlProcessInfo_t infos[PROCESSES_MAX];
	unsigned int n = PROCESSES_MAX;
	uint64_t bytes = 0;

	*ret_found = false;
	if (nvml.nvmlDeviceGetComputeRunningProcesses_v3(device, &n, infos) != NVML_SUCCESS)
		return 0;
	for (unsigned int i = 0; i < n && i < PROCESSES_MAX; i++) {
		if (infos[i].pid != (unsigned int)pid)
			continue;
		*ret_found = true;
		if (infos[i].usedGpuMemory != NVML_VALUE_NOT_AVAILABLE)
			bytes += infos[i].usedGpuMemory;
	}
	return bytes;
}

void nvml_fill_process(pid_t pid, struct dev_process *process)
{
	for (unsigned int i = 0; i < n_devices && process->n_gpus < DEV_GPUS_MAX; i++) {
		char *uuid = process->gpus[process->n_gpus];
		nvmlDevice_t device;
		bool found;

		if (!get_device(i, &device, uuid))
			continue;
		uint64_t bytes = bytes_of(device, pid, &found);
		if (!found)
			continue;
		process->gpu_bytes[process->n_gpus++] = bytes;
		process->used_bytes += bytes;
	}
}
