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

enum { TEXT_BYTES_MAX = 64 << 10, NODES_MAX = 256 };

/* A file of one line, without its end; empty if it cannot be read. */
static void read_line(const char *path, char *ret, size_t room)
{
	auto_free char *text = NULL;

	*ret = '\0';
	if (file_read(AT_FDCWD, path, TEXT_BYTES_MAX, &text, NULL) == 0)
		snprintf(ret, room, "%.*s", (int)strcspn(text, "\n"), text);
}

static uint64_t read_number(const char *path)
{
	char line[32];

	read_line(path, line, sizeof(line));
	return strtoull(line, NULL, 10);
}

/* ---- the topology ---- */

struct topology_node {
	uint64_t gpu_id; /* 0: a processor */
	uint64_t unique_id, domain, location_id, render_minor;
};

/* The value of "NAME VALUE" in a node's properties; 0 if it has none. */
static uint64_t find_property(const char *properties, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = properties; *p; p += strcspn(p, "\n"), p += *p == '\n')
		if (!strncmp(p, name, len) && p[len] == ' ')
			return strtoull(p + len, NULL, 10);
	return 0;
}

/* False: there is no node of that number. */
static bool read_node(const char *sysfs, unsigned int number, struct topology_node *ret)
{
	auto_free char *id =
		path_format("%s/class/kfd/kfd/topology/nodes/%u/gpu_id", sysfs, number);
	auto_free char *path =
		path_format("%s/class/kfd/kfd/topology/nodes/%u/properties", sysfs, number);
	auto_free char *text = NULL;

	if (!id || !path || file_read(AT_FDCWD, path, TEXT_BYTES_MAX, &text, NULL) < 0)
		return false;
	*ret = (struct topology_node){ .gpu_id = read_number(id),
				       .unique_id = find_property(text, "unique_id"),
				       .domain = find_property(text, "domain"),
				       .location_id = find_property(text, "location_id"),
				       .render_minor = find_property(text, "drm_render_minor") };
	return true;
}

/* The last 16 digits are those that AMD's own tools show. A card without such an id has its place as one. */
static void format_uuid(const struct topology_node *node, char ret[static DEV_UUID_TEXT_BYTES])
{
	uint64_t place = node->unique_id ? 0 : node->domain << 32 | node->location_id;
	uint8_t uuid[DEV_UUID_BYTES];

	for (int i = 0; i < 8; i++) {
		uuid[i] = (uint8_t)(place >> (56 - 8 * i));
		uuid[8 + i] = (uint8_t)(node->unique_id >> (56 - 8 * i));
	}
	dev_uuid_format(ret, uuid);
}

static uint64_t read_device_number(const char *sysfs, const struct topology_node *node,
				   const char *name)
{
	auto_free char *path = path_format("%s/class/drm/renderD%llu/device/%s", sysfs,
					   (unsigned long long)node->render_minor, name);

	return path ? read_number(path) : 0;
}

static void read_gpu(const char *sysfs, const struct topology_node *node, struct dev_gpu *ret)
{
	auto_free char *path = path_format("%s/class/drm/renderD%llu/device/product_name", sysfs,
					   (unsigned long long)node->render_minor);

	*ret = (struct dev_gpu){
		.total_bytes = read_device_number(sysfs, node, "mem_info_vram_total"),
		.used_bytes = read_device_number(sysfs, node, "mem_info_vram_used"),
	};
	format_uuid(node, ret->uuid);
	if (path)
		read_line(path, ret->name, sizeof(ret->name));
	if (!ret->name[0])
		snprintf(ret->name, sizeof(ret->name), "AMD GPU %llu",
			 (unsigned long long)node->gpu_id);
}

int amd_read_gpus(const char *sysfs, struct dev_gpu *ret, size_t max, size_t *ret_n,
		  struct brumate_error *err)
{
	struct topology_node node;
	size_t n = 0;

	for (unsigned int i = 0; i < NODES_MAX && n < max && read_node(sysfs, i, &node); i++)
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
	struct topology_node node;

	*ret = (struct dev_process){ .state = DEV_STATE_NONE };
	if (!dir || access(dir, F_OK) < 0)
		return;
	ret->state = DEV_STATE_RUNNING;
	for (unsigned int i = 0; i < NODES_MAX && read_node(sysfs, i, &node); i++) {
		auto_free char *path =
			path_format("%s/vram_%llu", dir, (unsigned long long)node.gpu_id);
		uint64_t bytes = path && node.gpu_id ? read_number(path) : 0;

		if (!bytes || ret->n_gpus == DEV_GPUS_MAX)
			continue;
		format_uuid(&node, ret->gpus[ret->n_gpus]);
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
		read_line(path, ret, room);
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
	*ret = (struct dev_info){ .simulated = libraries->simulated };
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
