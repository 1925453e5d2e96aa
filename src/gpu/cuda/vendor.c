// SPDX-License-Identifier: MIT
/* What is known about NVIDIA's GPUs without their driver; see gpu/vendor.h. */
#include "gpu/vendor.h"
#include "gpu/cuda/devices.h"
#include "gpu/cuda/private.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Capabilities 1 and 2 are for configuring and for monitoring MIG, and NVML opens the latter in every process
 * (PyTorch on an H200, driver 580); higher ones are of instances. */
static bool is_mig_instance(const char *path)
{
	static const char prefix[] = "/dev/nvidia-caps/nvidia-cap";

	return !strncmp(path, prefix, sizeof(prefix) - 1) && atoi(path + sizeof(prefix) - 1) > 2;
}

/* The second is of a Linux that Windows runs. */
static bool is_here(void)
{
	return access("/dev/nvidiactl", F_OK) == 0 || access("/dev/dxg", F_OK) == 0;
}

static bool leads_to_mps(const char *path)
{
	return strstr(path, "nvidia-mps") || strstr(path, "nvidia-cuda-mps");
}

/* Every context maps 2 MiB of the device at a low address, around 2^33; managed memory is mapped where the driver
 * reserved it, above 2^40 (docs/driver-behaviour.md). The simulated driver names its mapping. */
static bool maps_managed_memory(const char *maps)
{
	static const char real[] = "/dev/nvidia-uvm", simulated[] = "/memfd:nvidia-uvm";
	const uint64_t first = 1ull << 40;

	if (strstr(maps, simulated))
		return true;
	for (const char *p = maps; (p = strstr(p, real)); p += sizeof(real) - 1) {
		const char *line = p;

		if (p[sizeof(real) - 1] != '\n')
			continue; /* nvidia-uvm-tools */
		while (line > maps && line[-1] != '\n')
			line--;
		if (strtoull(line, NULL, 16) >= first)
			return true;
	}
	return false;
}

const struct cuda_release cuda_releases[CUDA_RELEASES] = {
	{ DEV_CHECKPOINT, "570", 12080 },     { DEV_REMAP, "580", 13000 },
	{ DEV_JOB_FILE, "590", 13010 },	      { DEV_LEGACY_IPC, "610", 13030 },
	{ DEV_CUSTOM_STORAGE, "615", 13040 },
};

static const char *feature_since(uint32_t feature)
{
	for (size_t i = 0; i < CUDA_RELEASES; i++)
		if (cuda_releases[i].feature == feature)
			return cuda_releases[i].release;
	return "?";
}

static const char *const graphics_libraries[] = { "libnvidia-glcore.so", "libnvidia-eglcore.so",
						  NULL };

/* The driver restores legacy IPC, but neither memory imported by descriptors nor multicast
 * (docs/driver-behaviour.md). */
static const char *const job_environment[] = { "NCCL_CUMEM_ENABLE=0", "NCCL_NVLS_ENABLE=0", NULL };

/* They share memory with the processor coherently. From documents alone, and from what one of their users reports of a GB10 with
 * driver 580.142: cuCheckpointProcessCheckpoint() is not supported there (NVIDIA/cuda-checkpoint#51). */
static const char *unproven_model(const char *name)
{
	static const char *const models[] = { "GH200", "GB200", "GB300", "GB10" };

	for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
		if (strstr(name, models[i]))
			return "shares memory with the processor: not run on such hardware by us; "
			       "driver 580 is reported to refuse checkpoints on a GB10";
	return NULL;
}

extern const struct gpu_vendor gpu_vendor_cuda;
const struct gpu_vendor gpu_vendor_cuda = {
	.id = "cuda",
	.name = "NVIDIA",
	.backend = &dev_cuda,
	.is_here = is_here,
	.unproven_model = unproven_model,
	.api = "CUDA",
	.devices = CUDA_DEVICES,
	.driver_library = "libcuda.so",
	.driver_threads = "cuda",
	/* Since driver 570 there is one, which serves checkpoint calls. */
	.clients_have_threads = true,
	.graphics_libraries = graphics_libraries,
	.is_partition = is_mig_instance,
	.partition = { .kind = "mig",
		       .name = "MIG",
		       .part = "a MIG instance",
		       .hint = "use a whole GPU" },
	.is_sharing_service = leads_to_mps,
	.sharing_service = { .kind = "mps", .name = "MPS", .hint = "run it without MPS" },
	.maps_managed_memory = maps_managed_memory,
	.managed_memory_hint = "start the job with --managed host, which is slower for the GPU, or "
			       "allocate with cudaMalloc",
	.interposer = "libbrumate-cuda.so",
	.simulated_driver = "sim/libcuda.so.1",
	.simulated_management_library = "sim/libnvidia-ml.so.1",
	.driver_job = { .variable = "CUDA_CHECKPOINT_JOB_FILE",
			.tool = "cuda-checkpoint",
			.option = "--launch-job",
			.simulated_tool = "sim/cuda-checkpoint",
			.environment = job_environment },
	.feature_since = feature_since,
	.persistence_daemon = "nvidia-persistenced",
	.persistence_socket = "/run/nvidia-persistenced/socket",
	.persistence_hint = "systemctl enable --now nvidia-persistenced (or nvidia-smi -pm 1)",
	.partition_hint = "turn MIG off: nvidia-smi -mig 0",
	.usage_tool = "nvidia-smi",
	/* Measured on an H200 with driver 580.159.04; on machines with slower links we wait for less. With a queue of
	 * copies in front of it, the driver's restore takes 0.27 s instead of 0.2 s. */
	.tuning = { .control_ms = 150,
		    .link_bytes_per_ms = 55000000,
		    .large_stream_bytes = 16ull << 30 },
};
