// SPDX-License-Identifier: MIT
/*
 * The AMD backend: what the kernel's compute driver tells in sysfs of its GPUs and clients. No library is loaded and no
 * device opened. There are no calls that save a process: CRIU's plugin does it. Not run on hardware by us: what it reads
 * is what the kernel's sources (drivers/gpu/drm/amd/amdkfd) write.
 */
#include "gpu/amd/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"

/* ---- GPUs ---- */

static uint64_t read_device_number(const char *sysfs, const struct amd_node *node, const char *name)
{
	auto_free char *path = path_format("%s/class/drm/renderD%llu/device/%s", sysfs,
					   (unsigned long long)node->render_minor, name);

	return path ? amd_read_number(path) : 0;
}

static void read_gpu(const char *sysfs, const struct amd_node *node, struct dev_gpu *ret)
{
	auto_free char *path = path_format("%s/class/drm/renderD%llu/device/product_name", sysfs,
					   (unsigned long long)node->render_minor);

	*ret = (struct dev_gpu){
		.total_bytes = read_device_number(sysfs, node, "mem_info_vram_total"),
		.used_bytes = read_device_number(sysfs, node, "mem_info_vram_used"),
	};
	amd_node_uuid(node, ret->uuid);
	if (path)
		amd_read_line(path, ret->name, sizeof(ret->name));
	if (!ret->name[0])
		snprintf(ret->name, sizeof(ret->name), "AMD GPU %04llx",
			 (unsigned long long)node->device_id);
}

int amd_read_gpus(const char *sysfs, struct dev_gpu *ret, size_t max, size_t *ret_n,
		  struct brumate_error *err)
{
	struct amd_node node;
	size_t n = 0;

	for (unsigned int i = 0; i < AMD_NODES_MAX && n < max && amd_read_node(sysfs, i, &node);
	     i++)
		if (node.gpu_id)
			read_gpu(sysfs, &node, &ret[n++]);
	if (!n) {
		int r = brumate_fail(err, ENODEV, "no AMD GPU: the kernel's topology has none");
		brumate_hint(err, "is the module amdgpu loaded, with compute support?");
		brumate_error_exit(err, EXIT_UNSUPPORTED);
		return r;
	}
	*ret_n = n;
	return 0;
}

/* ---- processes ---- */

void amd_read_process(const char *sysfs, pid_t pid, struct dev_process *ret)
{
	auto_free char *dir = path_format("%s/class/kfd/kfd/proc/%d", sysfs, (int)pid);
	struct amd_node node;

	*ret = (struct dev_process){ .state = DEV_STATE_NONE };
	if (!dir || access(dir, F_OK) < 0)
		return;
	ret->state = DEV_STATE_RUNNING;
	for (unsigned int i = 0; i < AMD_NODES_MAX && amd_read_node(sysfs, i, &node); i++) {
		auto_free char *path =
			path_format("%s/vram_%llu", dir, (unsigned long long)node.gpu_id);
		uint64_t bytes = path && node.gpu_id ? amd_read_number(path) : 0;

		if (!bytes || ret->n_gpus == DEV_GPUS_MAX)
			continue;
		amd_node_uuid(&node, ret->gpus[ret->n_gpus]);
		ret->gpu_bytes[ret->n_gpus++] = bytes;
		ret->used_bytes += bytes;
	}
}

/* ---- the backend ---- */

void amd_read_version(const char *sysfs, char *ret, size_t room)
{
	auto_free char *path = path_format("%s/module/amdgpu/version", sysfs);
	struct utsname u;

	*ret = '\0';
	if (path)
		amd_read_line(path, ret, room);
	if (!*ret && uname(&u) == 0)
		snprintf(ret, room, "%s", u.release);
}

static int amd_open(const struct dev_libraries *libraries, struct dev_info *ret,
		    struct brumate_error *err)
{
	struct dev_gpu first;
	size_t n;
	int r = amd_read_gpus("/sys", &first, 1, &n, err);

	if (r < 0)
		return r;
	*ret = (struct dev_info){ .simulated = libraries->simulated, .features = DEV_REMAP };
	amd_read_version("/sys", ret->driver_version, sizeof(ret->driver_version));
	return 0;
}

static int amd_gpus(struct dev_gpu *ret, size_t max, size_t *ret_n, struct brumate_error *err)
{
	return amd_read_gpus("/sys", ret, max, ret_n, err);
}

static int amd_process(pid_t pid, struct dev_process *ret, struct brumate_error *err)
{
	amd_read_process("/sys", pid, ret);
	return 0;
}

static int amd_state(pid_t pid, enum dev_state *ret, struct brumate_error *err)
{
	struct dev_process process;

	amd_read_process("/sys", pid, &process);
	*ret = process.state;
	return 0;
}

static void amd_usage(pid_t pid, struct dev_process *ret)
{
	amd_read_process("/sys", pid, ret);
}

const struct dev_backend dev_amd = {
	.name = "amd",
	.open = amd_open,
	.gpus = amd_gpus,
	.process = amd_process,
	.state = amd_state,
	.usage = amd_usage,
};
