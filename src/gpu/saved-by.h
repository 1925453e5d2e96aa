// SPDX-License-Identifier: MIT
/* What our plugin in CRIU knows of a vendor's own plugin there, which saves the state of its GPUs (gpu_vendor.saved_by_criu). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { GPU_MAP_BYTES = 8192 }; /* room for "FROM=TO,..." of all GPUs */

/* A function of the plugin, the one that is called in its place, and where that finds it. */
struct gpu_saved_call {
	const char *name;
	void *ours, **before;
};

struct gpu_saved_by {
	const char *vendor;  /* gpu_vendor.id */
	const char *library; /* below the folder of our plugin, where CRIU itself does not look */
	const char *
		files; /* prefixes of the paths of its descriptors and mappings, separated by colons */
	/* Whether its images, in the folder @images_fd, have what it has to save of CRIU's file @id. */
	bool (*is_saved)(int images_fd, int id);
	/* Whether what it logs as an error means that state is lost: it goes on, and says that all went well. */
	bool (*is_loss)(const char *format);
	const struct gpu_saved_call *calls; /* ends with one without a name */
	/* Before the first file: on which GPU each is to be restored, "FROM=TO,..." of UUIDs; those that are not named stay. */
	void (*begin)(bool is_restore, const char *map);
	/* Before a file is restored: which GPUs it was on. 0, -errno. */
	int (*read_gpus)(int images_fd, int id);
	/* After a file was dumped. 0, -errno. */
	int (*write_gpus)(int images_fd, int id);
	/* Resumes the process that opened @fd, one of @files, if the plugin left it paused. */
	void (*go_on)(int fd);
};

/** All that are known; ends with NULL. */
extern const struct gpu_saved_by *const gpu_saved_by_all[];

/** NULL: no plugin of that vendor is known. */
const struct gpu_saved_by *gpu_saved_by_find(const char *vendor);
