// SPDX-License-Identifier: MIT
/*
 * What is peculiar to amdgpu_plugin.so, of CRIU's plugins/amdgpu: the images by which it is known to have done its work, and how
 * processes go on that it left paused. Part of our plugin in CRIU. Not run on hardware by us.
 *
 * Up to CRIU 4.2.1 it reports what it could not save as saved, where the file is the last one of a process
 * (its hook returns what unpausing did); and a process that does not have the render nodes of all GPUs open
 * stays paused. No version unpauses a process whose dump failed, or reports that the GPU could not copy.
 */
#include "gpu/saved-by.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool has_image(int images_fd, const char *format, int id)
{
	char name[64];

	snprintf(name, sizeof(name), format, id);
	return faccessat(images_fd, name, R_OK, 0) == 0;
}

static bool is_saved(int images_fd, int id)
{
	return has_image(images_fd, "amdgpu-kfd-%d.img", id) ||
	       has_image(images_fd, "amdgpu-renderD-%d.img", id) ||
	       has_image(images_fd, "amdgpu-dmabuf_%d.img", id);
}

/* Its copies by the GPU return what their cleaning up does. What it says of its own failures begins so; other errors are tries that may
 * fail, or are returned. */
static bool is_loss(const char *format)
{
	return strstr(format, "failed to ") || strstr(format, "did not complete");
}

/* Facts of the kernel's interface, whose header takes those of libdrm. */
struct criu_args {
	uint64_t devices, bos, private_data, private_bytes;
	uint32_t n_devices, n_bos, n_objects, pid, op;
};
#define CRIU_OP _IOWR('K', 0x22, struct criu_args)
enum { CRIU_OP_UNPAUSE = 2 };

/* The kernel answers EINVAL for a process that is not paused, and other files with ENOTTY. */
static void go_on(int fd)
{
	struct criu_args args = { .op = CRIU_OP_UNPAUSE };

	ioctl(fd, CRIU_OP, &args);
}

static const struct gpu_saved_by amd = {
	.vendor = "amd",
	.library = "amd/amdgpu_plugin.so",
	.files = "/dev/kfd:/dev/dri/renderD:/dmabuf:",
	.is_saved = is_saved,
	.is_loss = is_loss,
	.go_on = go_on,
};

const struct gpu_saved_by *gpu_saved_by_find(const char *vendor)
{
	return vendor && !strcmp(vendor, amd.vendor) ? &amd : NULL;
}
