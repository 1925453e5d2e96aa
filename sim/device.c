// SPDX-License-Identifier: MIT
/* The simulated GPUs as devices: which of the machine's the process sees, and their properties. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "sim.h"
#include "uuid.h"

bool device_valid(CUdevice dev)
{
	return dev >= 0 && dev < sim.n_devices;
}

/* The GPU of the machine behind an ordinal of this process; a restore may change it. */
int device_gpu(CUdevice dev)
{
	int gpu;

	pthread_mutex_lock(&sim.lock);
	gpu = sim.gpu_of[dev];
	pthread_mutex_unlock(&sim.lock);
	return gpu;
}

static CUuuid uuid_on(const struct config_machine *machine, int gpu)
{
	CUuuid uuid = { { 0x53, 0x49, 0x4d } };

	uuid.bytes[15] = (char)machine->gpu[gpu].uuid;
	return uuid;
}

void uuid_of_gpu(CUuuid *ret, int gpu)
{
	*ret = uuid_on(&config_get()->machine, gpu);
}

int gpu_of_uuid(const struct config_machine *machine, const CUuuid *uuid)
{
	for (int i = 0; i < (int)machine->n_gpus; i++) {
		CUuuid one = uuid_on(machine, i);

		if (!memcmp(&one, uuid, sizeof(one)))
			return i;
	}
	return -1;
}

static int gpu_by_name(const char *name)
{
	int n_gpus = (int)config_get()->machine.n_gpus;
	char uuid[UUID_TEXT_BYTES], *end;

	for (int i = 0; i < n_gpus && !strncmp(name, "GPU-", 4); i++) {
		uuid_text(uuid, i);
		if (strlen(name) > 4 && !strncmp(uuid, name, strlen(name)))
			return i;
	}
	long index = strtol(name, &end, 10);
	return end != name && !*end && index >= 0 && index < n_gpus ? (int)index : -1;
}

/* CUDA_VISIBLE_DEVICES: indices or UUIDs; the list ends at the first that is no GPU. */
int devices_init(void)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	auto_free char *copy = visible ? strdup(visible) : NULL;
	char *rest = copy, *item;
	int gpu;

	sim.n_devices = 0;
	if (visible && !copy)
		return -ENOMEM;
	for (uint32_t i = 0; !visible && i < config_get()->machine.n_gpus; i++)
		sim.gpu_of[sim.n_devices++] = (int)i;
	while (copy && (item = strsep(&rest, ",")) && sim.n_devices < CONFIG_GPUS_MAX) {
		gpu = gpu_by_name(item);
		for (int i = 0; i < sim.n_devices; i++)
			if (sim.gpu_of[i] == gpu)
				gpu = -1;
		if (gpu < 0)
			break;
		sim.gpu_of[sim.n_devices++] = gpu;
	}
	return 0;
}

static CUresult device_get(CUdevice *dev, int ordinal)
{
	if (!dev)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*dev = ordinal;
	return CUDA_SUCCESS;
}

static CUresult device_count(int *count)
{
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim.n_devices;
	return CUDA_SUCCESS;
}

static CUresult device_name(char *name, int len, CUdevice dev)
{
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, (size_t)len, "%s", config_get()->machine.gpu[device_gpu(dev)].model);
	return CUDA_SUCCESS;
}

static CUresult device_uuid(CUuuid *uuid, CUdevice dev)
{
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	uuid_of_gpu(uuid, device_gpu(dev));
	return CUDA_SUCCESS;
}

static CUresult device_total(size_t *bytes, CUdevice dev)
{
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = config_get()->machine.gpu[device_gpu(dev)].vram_bytes;
	return CUDA_SUCCESS;
}

static CUresult device_bus_id(char *text, int len, CUdevice dev)
{
	if (!text || len < 13)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	snprintf(text, (size_t)len, "0000:%02X:00.0", (unsigned int)device_gpu(dev) + 1);
	return CUDA_SUCCESS;
}

/* Figures of an H200 where programs size their launches by them. */
static const struct {
	CUdevice_attribute attribute;
	int value;
} attributes[] = {
	{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024 },
	{ CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152 },
	{ CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 65536 },
	{ CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32 },
	{ CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647 },
	{ CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536 },
	{ CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000 },
	{ CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512 },
	{ CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132 },
	{ CU_DEVICE_ATTRIBUTE_KERNEL_EXEC_TIMEOUT, 0 },
	{ CU_DEVICE_ATTRIBUTE_INTEGRATED, 0 },
	{ CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0 },
	{ CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1 },
	{ CU_DEVICE_ATTRIBUTE_ECC_ENABLED, 1 },
	{ CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 0 },
	{ CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 0 },
	{ CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE, 3201000 },
	{ CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 6144 },
	{ CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE, 62914560 },
	{ CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048 },
	{ CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 3 },
	{ CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0 },
	{ CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472 },
	{ CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536 },
	{ CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1 },
	{ CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS, 0 },
	{ CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1 },
	{ CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1 },
	{ CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1 },
	{ CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448 },
	{ CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, 1 },
	{ CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 0 },
	{ CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1 },
};

static CUresult device_attribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (attribute == CU_DEVICE_ATTRIBUTE_PCI_BUS_ID) {
		*value = device_gpu(dev) + 1;
		return CUDA_SUCCESS;
	}
	if (attribute == CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) {
		*value = config_get()->rdma;
		return CUDA_SUCCESS;
	}
	for (size_t i = 0; i < sizeof(attributes) / sizeof(*attributes); i++) {
		if (attributes[i].attribute == attribute) {
			*value = attributes[i].value;
			return CUDA_SUCCESS;
		}
	}
	/* An attribute this driver does not know: as one of a feature that it has not got. */
	*value = 0;
	return attribute > 0 && attribute < 1000 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult can_access_peer(int *can, CUdevice dev, CUdevice peer)
{
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_valid(dev) || !device_valid(peer))
		return CUDA_ERROR_INVALID_DEVICE;
	*can = dev != peer && config_get()->peers;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *dev, int ordinal)
{
	return API(device_get(dev, ordinal));
}

CUresult cuDeviceGetCount(int *count)
{
	return API(device_count(count));
}

CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	return API(device_name(name, len, dev));
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	return API(device_uuid(uuid, dev));
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	return API(device_uuid(uuid, dev));
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	return API(device_total(bytes, dev));
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice dev)
{
	return API(device_attribute(value, attribute, dev));
}

CUresult cuDeviceGetPCIBusId(char *text, int len, CUdevice dev)
{
	return API(device_bus_id(text, len, dev));
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	return API(can_access_peer(can, dev, peer));
}
