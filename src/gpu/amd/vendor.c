// SPDX-License-Identifier: MIT
/* What is known about AMD's GPUs without their driver; see gpu/vendor.h. Not run on hardware by us. */
#include "gpu/vendor.h"
#include "gpu/amd/private.h"

#include <stddef.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"

/* Our plugin in CRIU loads it: CRIU itself is not to find it (criu-plugin/vendor.c). */
static bool has_plugin(void)
{
	auto_free char *path = path_find_helper("criu-plugin/amd/amdgpu_plugin.so");

	return path && access(path, R_OK) == 0;
}

/* The render nodes are those of other makers' GPUs, too. */
static bool has_device(void)
{
	return access("/dev/kfd", F_OK) == 0;
}

static bool is_here(void)
{
	return has_device() && has_plugin();
}

static const char *lacks(void)
{
	return has_device() && !has_plugin()
		       ? "install brumate-amd, or put amdgpu_plugin.so, built "
			 "from the sources of the CRIU in use, into the "
			 "folder criu-plugin/amd of brumate"
		       : NULL;
}

static const char *feature_since(uint32_t feature)
{
	return "?";
}

static const char *const no_libraries[] = { NULL };

extern const struct gpu_vendor gpu_vendor_amd;
const struct gpu_vendor gpu_vendor_amd = {
	.id = "amd",
	.name = "AMD",
	.api = "HIP",
	.backend = &dev_amd,
	.is_here = is_here,
	.lacks = lacks,
	.unproven = "AMD GPUs: not run on hardware by us",
	.devices = "/dev/kfd:/dev/dri/renderD",
	.driver_library = "libhsa-runtime64.so",
	.graphics_libraries = no_libraries,
	.partition_hint = "set its compute partition to SPX: amd-smi set --compute-partition SPX",
	.partition = { .kind = "partition", .name = "partitioning", .hint = "use a whole GPU" },
	.feature_since = feature_since,
	.usage_tool = "amd-smi process",
	.saved_by_criu = true,
	/* Guesses: a wrong one only costs time. */
	.tuning = { .control_ms = 1000,
		    .link_bytes_per_ms = 25000000,
		    .large_stream_bytes = 16ull << 30 },
};
