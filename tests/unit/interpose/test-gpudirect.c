// SPDX-License-Identifier: MIT
/* What of /sys makes memory ready for GPUDirect. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/fd.h"
#include "check.h"
#include "interpose/cuda/gpudirect.h"

static char root[] = "/tmp/test-gpudirect-XXXXXX";

static void make(const char *below)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/sys/%s", root, below);
	CHECK(mkdir_parents(path, 0700) == 0);
}

static void drop(const char *below)
{
	char path[256];

	snprintf(path, sizeof(path), "%s/sys/%s", root, below);
	CHECK(remove_tree(AT_FDCWD, path) == 0);
}

static void test_modules(void)
{
	static const char *const foreign[] = { "nvidia_peermem", "gdrdrv", "nvidia_fs",
					       "nvidia_uvm2",	 "nvidia", "nvidia-peermem" };
	char path[128];

	for (size_t i = 0; i < sizeof(foreign) / sizeof(*foreign); i++) {
		snprintf(path, sizeof(path), "module/nvidia/holders/%s", foreign[i]);
		make(path);
		CHECK(gpudirect_possible(root));
		drop(path);
		CHECK(!gpudirect_possible(root));
	}
}

int main(void)
{
	CHECK(mkdtemp(root));
	errno = EXDEV;
	CHECK(gpudirect_possible(root)); /* nothing to be read */
	CHECK(errno == EXDEV);
	make("module/nvidia/holders");
	CHECK(!gpudirect_possible(root));
	make("module/nvidia/holders/nvidia_uvm");
	make("module/nvidia/holders/nvidia-modeset");
	make("module/nvidia/holders/nvidia_drm");
	make("class/infiniband");
	CHECK(!gpudirect_possible(root));
	test_modules();
	make("class/infiniband/mlx5_0");
	CHECK(gpudirect_possible(root));
	drop("class/infiniband");
	CHECK(!gpudirect_possible(root));
	CHECK(remove_tree(AT_FDCWD, root) == 0);
	return 0;
}
