// SPDX-License-Identifier: MIT
/*
 * The management library of the simulated GPUs: reads what the driver's side keeps in the directory
 * of the machine. Which process uses how much follows from who holds which file, by /proc/locks.
 */
#include "driver-abi.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "config.h"
#include "uuid.h"
#include "vram.h"

static atomic_int users;

static const struct config *ready(void)
{
	return atomic_load(&users) > 0 ? config_get() : NULL;
}

/* Handles are numbers of GPUs, counted from 1. */
static int gpu_of(nvmlDevice_t device)
{
	uintptr_t n = (uintptr_t)device;
	const struct config *config = ready();

	return config && n >= 1 && n <= config->machine.n_gpus ? (int)n - 1 : -1;
}

static nvmlReturn_t no_gpu(void)
{
	return ready() ? NVML_ERROR_INVALID_ARGUMENT : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t put_text(char *ret, unsigned int length, const char *text)
{
	if (!ret)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(ret, text);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
	if (!config_get() || vram_init() < 0)
		return NVML_ERROR_DRIVER_NOT_LOADED;
	atomic_fetch_add(&users, 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlShutdown(void)
{
	if (atomic_load(&users) <= 0)
		return NVML_ERROR_UNINITIALIZED;
	atomic_fetch_sub(&users, 1);
	return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
	switch (result) {
	case NVML_SUCCESS:
		return "Success";
	case NVML_ERROR_UNINITIALIZED:
		return "Uninitialized";
	case NVML_ERROR_INVALID_ARGUMENT:
		return "Invalid Argument";
	case NVML_ERROR_NOT_SUPPORTED:
		return "Not Supported";
	case NVML_ERROR_NO_PERMISSION:
		return "Insufficient Permissions";
	case NVML_ERROR_NOT_FOUND:
		return "Not Found";
	case NVML_ERROR_INSUFFICIENT_SIZE:
		return "Insufficient Size";
	case NVML_ERROR_DRIVER_NOT_LOADED:
		return "Driver Not Loaded";
	case NVML_ERROR_UNKNOWN:
		break;
	}
	return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	const struct config *config = ready();

	return config ? put_text(version, length, config->driver_version)
		      : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
	const struct config *config = ready();

	if (!config)
		return NVML_ERROR_UNINITIALIZED;
	if (!count)
		return NVML_ERROR_INVALID_ARGUMENT;
	*count = config->machine.n_gpus;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	const struct config *config = ready();

	if (!config)
		return NVML_ERROR_UNINITIALIZED;
	if (!device || index >= config->machine.n_gpus)
		return NVML_ERROR_INVALID_ARGUMENT;
	*device = (nvmlDevice_t)(uintptr_t)(index + 1);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	int gpu = gpu_of(device);

	return gpu < 0 ? no_gpu() : put_text(name, length, config_get()->machine.gpu[gpu].model);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
	char text[UUID_TEXT_BYTES];
	int gpu = gpu_of(device);

	if (gpu < 0)
		return no_gpu();
	uuid_text(text, gpu);
	return put_text(uuid, length, text);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
	int gpu = gpu_of(device);
	uint64_t total, used;

	if (gpu < 0)
		return no_gpu();
	if (!memory)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (vram_used(gpu, &used) < 0)
		return NVML_ERROR_UNKNOWN;
	total = config_get()->machine.gpu[gpu].vram_bytes;
	*memory = (nvmlMemory_t){ .total = total,
				  .used = used,
				  .free = used < total ? total - used : 0 };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
	if (gpu_of(device) < 0)
		return no_gpu();
	if (!current || !pending)
		return NVML_ERROR_INVALID_ARGUMENT;
	*current = *pending = config_get()->machine.mig;
	return NVML_SUCCESS;
}

enum { LOOKS_MAX = 5 };

struct lock {
	pid_t pid;
	dev_t dev;
	ino_t ino;
};

/* Everything the processes of one GPU use, while it is collected. */
struct nvml_usage {
	struct lock *locks;
	size_t n_locks;
	nvmlProcessInfo_t *processes;
	size_t n_processes;
	bool failed;
};

static void usage_fini(struct nvml_usage *usage)
{
	free(usage->locks);
	free(usage->processes);
}
DEFINE_AUTO_FINI(struct nvml_usage, usage_fini)

/*
 * The shared flocks of the machine: "1: FLOCK ADVISORY READ PID MAJOR:MINOR:INODE 0 EOF". The kernel returns the file
 * a page at a time and counts lines to find its position: if others release locks in between, lines are missing.
 */
static int read_locks(struct nvml_usage *usage)
{
	auto_fclose FILE *f = fopen("/proc/locks", "re");
	unsigned int major_nr, minor_nr;
	unsigned long ino;
	char line[256];
	struct lock *locks;
	int pid;

	if (!f)
		return -errno;
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%*s FLOCK ADVISORY READ %d %x:%x:%lu", &pid, &major_nr, &minor_nr,
			   &ino) != 4)
			continue;
		locks = realloc(usage->locks, (usage->n_locks + 1) * sizeof(*locks));
		if (!locks)
			return -ENOMEM;
		usage->locks = locks;
		locks[usage->n_locks++] = (struct lock){ pid, makedev(major_nr, minor_nr), ino };
	}
	return 0;
}

static nvmlProcessInfo_t *process_of(struct nvml_usage *usage, pid_t pid)
{
	nvmlProcessInfo_t *processes;

	for (size_t i = 0; i < usage->n_processes; i++)
		if (usage->processes[i].pid == (unsigned int)pid)
			return &usage->processes[i];
	processes = realloc(usage->processes, (usage->n_processes + 1) * sizeof(*processes));
	if (!processes)
		return NULL;
	usage->processes = processes;
	processes[usage->n_processes] = (nvmlProcessInfo_t){ .pid = (unsigned int)pid,
							     .gpuInstanceId = ~0u,
							     .computeInstanceId = ~0u };
	return &processes[usage->n_processes++];
}

/* Counts the allocation for each live process that holds it; once, however often it does. */
static void count_allocation(const struct stat *st, const char *name, void *data)
{
	struct nvml_usage *usage = data;
	nvmlProcessInfo_t *process;

	for (size_t i = 0; i < usage->n_locks; i++) {
		const struct lock *lock = &usage->locks[i];
		char path[32];
		bool counted = false;

		for (size_t j = 0; j < i && !counted; j++)
			counted = usage->locks[j].pid == lock->pid &&
				  usage->locks[j].ino == lock->ino &&
				  usage->locks[j].dev == lock->dev;
		snprintf(path, sizeof(path), "/proc/%d", lock->pid);
		if (lock->ino != st->st_ino || lock->dev != st->st_dev || counted ||
		    access(path, F_OK) < 0)
			continue;
		process = process_of(usage, lock->pid);
		if (process)
			process->usedGpuMemory += (unsigned long long)st->st_size;
		else
			usage->failed = true;
	}
}

static int collect(int gpu, struct nvml_usage *usage)
{
	int r = read_locks(usage);

	if (r == 0)
		r = vram_for_each(gpu, count_allocation, usage);
	return r == 0 && usage->failed ? -ENOMEM : r;
}

static bool same_processes(const struct nvml_usage *a, const struct nvml_usage *b)
{
	size_t n = a->n_processes;

	return n == b->n_processes &&
	       (!n || !memcmp(a->processes, b->processes, n * sizeof(*a->processes)));
}

/* Until two looks in a row found the same, so that no lock was left out; the last one else. */
static int collect_surely(int gpu, struct nvml_usage *ret)
{
	int r = collect(gpu, ret);

	for (int i = 0; r == 0 && i < LOOKS_MAX; i++) {
		auto_(usage_fini) struct nvml_usage before = *ret;

		*ret = (struct nvml_usage){ 0 };
		r = collect(gpu, ret);
		if (r == 0 && same_processes(ret, &before))
			break;
	}
	return r;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count,
						     nvmlProcessInfo_t *infos)
{
	auto_(usage_fini) struct nvml_usage usage = { 0 };
	int gpu = gpu_of(device);
	unsigned int room;

	if (gpu < 0)
		return no_gpu();
	if (!count || (*count && !infos))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (collect_surely(gpu, &usage) < 0)
		return NVML_ERROR_UNKNOWN;
	room = *count;
	*count = (unsigned int)usage.n_processes;
	if (usage.n_processes > room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	if (usage.n_processes)
		memcpy(infos, usage.processes, usage.n_processes * sizeof(*infos));
	return NVML_SUCCESS;
}
