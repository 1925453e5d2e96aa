// SPDX-License-Identifier: MIT
/* The management library of the simulated driver: what it sees of other processes. */
#include <dlfcn.h>

#include "driver-abi.h"
#include "sim.h"

static struct {
	__typeof__(nvmlInit_v2) *init;
	__typeof__(nvmlShutdown) *shutdown;
	__typeof__(nvmlSystemGetDriverVersion) *version;
	__typeof__(nvmlDeviceGetCount_v2) *count;
	__typeof__(nvmlDeviceGetHandleByIndex_v2) *by_index;
	__typeof__(nvmlDeviceGetName) *name;
	__typeof__(nvmlDeviceGetUUID) *uuid;
	__typeof__(nvmlDeviceGetMemoryInfo) *memory;
	__typeof__(nvmlDeviceGetComputeRunningProcesses_v3) *processes;
	__typeof__(nvmlDeviceGetMigMode) *mig;
} nvml;

static void load(void)
{
	void *library = dlopen(getenv("BRUMATE_NVML_LIBRARY"), RTLD_NOW | RTLD_LOCAL);

	CHECK(library);
	CHECK((nvml.init = dlsym(library, "nvmlInit_v2")));
	CHECK((nvml.shutdown = dlsym(library, "nvmlShutdown")));
	CHECK((nvml.version = dlsym(library, "nvmlSystemGetDriverVersion")));
	CHECK((nvml.count = dlsym(library, "nvmlDeviceGetCount_v2")));
	CHECK((nvml.by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2")));
	CHECK((nvml.name = dlsym(library, "nvmlDeviceGetName")));
	CHECK((nvml.uuid = dlsym(library, "nvmlDeviceGetUUID")));
	CHECK((nvml.memory = dlsym(library, "nvmlDeviceGetMemoryInfo")));
	CHECK((nvml.processes = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v3")));
	CHECK((nvml.mig = dlsym(library, "nvmlDeviceGetMigMode")));
}

static void user(int socket)
{
	CUdeviceptr ptr;

	start_driver(1);
	CHECK(cu.cuMemAlloc_v2(&ptr, 10 * MIB) == CUDA_SUCCESS);
	say(socket, 0);
	hear(socket);
}

static unsigned long long used(nvmlDevice_t gpu)
{
	nvmlMemory_t memory;

	CHECK(nvml.memory(gpu, &memory) == NVML_SUCCESS);
	CHECK(memory.total == 64 * MIB);
	CHECK(memory.used + memory.free == memory.total);
	return memory.used;
}

static void test_machine(nvmlDevice_t gpu)
{
	unsigned int current, pending;
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];

	CHECK(nvml.version(text, sizeof(text)) == NVML_SUCCESS);
	CHECK_STR(text, "580.159.04");
	CHECK(nvml.name(gpu, text, sizeof(text)) == NVML_SUCCESS);
	CHECK_STR(text, "Simulated H200");
	CHECK(nvml.uuid(gpu, text, sizeof(text)) == NVML_SUCCESS);
	CHECK_STR(text, "GPU-53494d00-0000-0000-0000-000000000001");
	CHECK(nvml.uuid(gpu, text, 10) == NVML_ERROR_INSUFFICIENT_SIZE);
	CHECK(nvml.mig(gpu, &current, &pending) == NVML_SUCCESS);
	CHECK(current == NVML_DEVICE_MIG_DISABLE && pending == NVML_DEVICE_MIG_DISABLE);
}

/* A process is listed while it has device memory: not while it is checkpointed. */
static void test_processes(nvmlDevice_t gpu)
{
	nvmlProcessInfo_t infos[4];
	unsigned int n = 4;
	struct child child;

	CHECK(used(gpu) == 0);
	child_start(&child, "user");
	hear(child.socket);
	CHECK(used(gpu) == 18 * MIB); /* with the context */
	CHECK(nvml.processes(gpu, &n, infos) == NVML_SUCCESS);
	CHECK(n == 1 && infos[0].pid == (unsigned int)child.pid);
	CHECK(infos[0].usedGpuMemory == 18 * MIB);
	n = 0;
	CHECK(nvml.processes(gpu, &n, NULL) == NVML_ERROR_INSUFFICIENT_SIZE && n == 1);
	CHECK(lock(child.pid, 0) == CUDA_SUCCESS);
	CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	n = 4;
	CHECK(nvml.processes(gpu, &n, infos) == NVML_SUCCESS && n == 0);
	CHECK(used(gpu) == 0);
	CHECK(restore(child.pid) == CUDA_SUCCESS);
	CHECK(used(gpu) == 18 * MIB);
	child_kill(&child);
	CHECK(used(gpu) == 0);
}

static const struct child_body bodies[] = { { "user", user }, { NULL } };

int main(int argc, char **argv)
{
	nvmlDevice_t gpu;
	unsigned int n;

	child_main(argc, argv, bodies);
	make_machine("64");
	load();
	load_driver();
	CHECK(nvml.count(&n) == NVML_ERROR_UNINITIALIZED);
	CHECK(nvml.init() == NVML_SUCCESS);
	CHECK(nvml.count(&n) == NVML_SUCCESS && n == 2);
	CHECK(nvml.by_index(2, &gpu) == NVML_ERROR_INVALID_ARGUMENT);
	CHECK(nvml.by_index(1, &gpu) == NVML_SUCCESS);
	test_machine(gpu);
	test_processes(gpu);
	CHECK(nvml.shutdown() == NVML_SUCCESS);
	CHECK(nvml.shutdown() == NVML_ERROR_UNINITIALIZED);
	return 0;
}
