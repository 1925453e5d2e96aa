// SPDX-License-Identifier: MIT
/* What the amd backend reads, of a tree as the kernel's sources say that sysfs has it: no such hardware was asked. */
#include "check.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "gpu/amd/private.h"
#include "gpu/vendor.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char dir[] = "/tmp/brumate-amd-XXXXXX";

static void put(const char *path, const char *text)
{
	auto_free char *full = path_format("%s/%s", dir, path);
	auto_free char *parent = strdup(full);

	*strrchr(parent, '/') = '\0';
	CHECK(mkdir_parents(parent, 0755) == 0);
	auto_close int fd = open(full, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	CHECK(fd >= 0 && fd_write_full(fd, text, strlen(text)) >= 0);
}

#define NODES "class/kfd/kfd/topology/nodes/"

/* A processor and two GPUs, the second without an id of its own and without a name. */
static void make_tree(void)
{
	put(NODES "0/gpu_id", "0\n");
	put(NODES "0/properties", "cpu_cores_count 64\nsimd_count 0\n");
	put(NODES "1/gpu_id", "51110\n");
	put(NODES "1/properties",
	    "simd_count 440\nlocation_id 33536\ndomain 0\ndrm_render_minor 128\n"
	    "num_xcc 1\nunique_id 8891302694849094277\n");
	put(NODES "2/gpu_id", "7\n");
	put(NODES "2/properties",
	    "device_id 29695\nlocation_id 256\ndomain 1\ndrm_render_minor 129\nunique_id 0\n");
	put("class/drm/renderD128/device/product_name", "AMD Instinct MI300X\n");
	put("class/drm/renderD128/device/mem_info_vram_total", "206141652992\n");
	put("class/drm/renderD128/device/mem_info_vram_used", "297213952\n");
	put("class/drm/renderD129/device/mem_info_vram_total", "17163091968\n");
	put("class/kfd/kfd/proc/4711/vram_51110", "8589934592\n");
	put("class/kfd/kfd/proc/4711/vram_7", "0\n");
	put("class/kfd/kfd/proc/4711/sdma_7", "12\n");
	put("module/amdgpu/version", "6.12.12\n");
}

static void test_gpus(void)
{
	struct dev_gpu gpus[4];
	size_t n = 0;

	CHECK(amd_read_gpus(dir, gpus, 4, &n, NULL) == 0 && n == 2);
	/* 8891302694849094277 is 0x7b6440b15cf42285, as AMD's tools show it. */
	CHECK_STR(gpus[0].uuid, "GPU-00000000-0000-0000-7b64-40b15cf42285");
	CHECK_STR(gpus[0].name, "AMD Instinct MI300X");
	CHECK(gpus[0].total_bytes == 206141652992 && gpus[0].used_bytes == 297213952);
	CHECK_STR(gpus[1].uuid, "GPU-00000001-0000-0100-0000-000000000000");
	CHECK_STR(gpus[1].name, "AMD GPU 73ff");
	CHECK(gpus[1].total_bytes == 17163091968 && gpus[1].used_bytes == 0);
	CHECK(amd_read_gpus(dir, gpus, 1, &n, NULL) == 0 && n == 1);
}

static void test_processes(void)
{
	struct dev_process p;
	char version[64];

	amd_read_process(dir, 4711, &p);
	CHECK(p.state == DEV_STATE_RUNNING && p.n_gpus == 1 && p.used_bytes == 8589934592);
	CHECK_STR(p.gpus[0], "GPU-00000000-0000-0000-7b64-40b15cf42285");
	amd_read_process(dir, 4712, &p);
	CHECK(p.state == DEV_STATE_NONE && !p.n_gpus);
	amd_read_version(dir, version, sizeof(version));
	CHECK_STR(version, "6.12.12");
}

static void test_map(void)
{
	CHECK(amd_map_allows("", "GPU-a", "GPU-a") && !amd_map_allows("", "GPU-a", "GPU-b"));
	CHECK(amd_map_allows("GPU-a=GPU-b,GPU-b=GPU-a", "GPU-a", "GPU-b"));
	CHECK(amd_map_allows("GPU-a=GPU-b,GPU-b=GPU-a", "GPU-b", "GPU-a"));
	CHECK(!amd_map_allows("GPU-a=GPU-b,GPU-b=GPU-a", "GPU-a", "GPU-a"));
	CHECK(!amd_map_allows("GPU-a=GPU-bc", "GPU-a", "GPU-b"));
	CHECK(!amd_map_allows("GPU-a=GPU-b", "GPU-a", "GPU-bc"));
	CHECK(amd_map_allows("GPU-a=GPU-b", "GPU-c", "GPU-c"));
	CHECK(!amd_map_allows(",=,a", "GPU-a", "GPU-b"));
}

/* Without such GPUs nothing is taken for theirs: render nodes are of any maker. */
static void test_absent(void)
{
	const struct gpu_vendor *amd = gpu_vendor_find("amd");
	struct dev_gpu gpu;
	size_t n;

	CHECK(amd && amd->saved_by_criu && amd->unproven && amd != gpu_vendors[0]);
	CHECK(gpu_vendor_has_device(amd, "/dev/dri/renderD128", 19));
	CHECK(!gpu_vendor_has_device(amd, "/dev/dri/card0", 14));
	CHECK(amd_read_gpus("/nowhere", &gpu, 1, &n, NULL) == -ENODEV);
	if (access("/dev/kfd", F_OK) == 0)
		return; /* a machine with them */
	CHECK(!amd->is_here() && !amd->lacks());
	CHECK(!gpu_is_device("/dev/dri/renderD128", 19) && gpu_is_device("/dev/nvidia0", 12));
	CHECK(gpu_clients_have_threads());
	const struct gpu_kind here = gpu_kind_here(false);
	CHECK_STR(here.vendor, "cuda");
}

int main(void)
{
	CHECK(mkdtemp(dir));
	make_tree();
	test_gpus();
	test_processes();
	test_map();
	test_absent();
	CHECK(remove_tree(AT_FDCWD, dir) == 0);
	return 0;
}
