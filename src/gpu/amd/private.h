// SPDX-License-Identifier: MIT
/* Shared by the files of the amd backend: what the kernel tells of GPUs and of the processes that use them. */
#pragma once

#include "gpu/gpu.h"

enum { AMD_NODES_MAX = 256 };

/** A node of the kernel's topology. */
struct amd_node {
	uint64_t gpu_id; /* 0: a processor */
	uint64_t unique_id, domain, location_id, device_id, render_minor;
};

/** Node @number below @sysfs. False: there is none of that number. */
bool amd_read_node(const char *sysfs, unsigned int number, struct amd_node *ret);

void amd_node_uuid(const struct amd_node *node, char ret[static DEV_UUID_TEXT_BYTES]);

/** A file of one line, without its end; empty if it cannot be read. */
void amd_read_line(const char *path, char *ret, size_t room);

uint64_t amd_read_number(const char *path);

/** The GPUs below @sysfs ("/sys"), in the order of the kernel's topology. -ENODEV: there is none. */
int amd_read_gpus(const char *sysfs, struct dev_gpu *ret, size_t max, size_t *ret_n,
		  struct brumate_error *err);

/** What @pid uses; DEV_STATE_NONE if the kernel does not know it as a client. */
void amd_read_process(const char *sysfs, pid_t pid, struct dev_process *ret);

/** The version of the driver: its own, or the kernel's, whose part it is then. */
void amd_read_version(const char *sysfs, char *ret, size_t room);

/** Whether what was on GPU @from may go to @to: as @map says, "FROM=TO,...", and to itself where it is not in there. Pure. */
bool amd_map_allows(const char *map, const char *from, const char *to);

/** The backend. Nothing of it was run on hardware by us. */
extern const struct dev_backend dev_amd;
