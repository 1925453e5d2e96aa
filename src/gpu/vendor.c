// SPDX-License-Identifier: MIT
/* See vendor.h. */
#include "gpu/vendor.h"

#include <string.h>

extern const struct gpu_vendor gpu_vendor_cuda;

const struct gpu_vendor *gpu_vendor(void)
{
	return &gpu_vendor_cuda;
}

bool gpu_vendor_has_device(const struct gpu_vendor *vendor, const char *path, size_t len)
{
	for (const char *p = vendor->devices; *p;) {
		size_t n = strcspn(p, ":");

		if (n && n <= len && !memcmp(path, p, n))
			return true;
		p += n + (p[n] == ':');
	}
	return false;
}

bool gpu_is_device(const char *path, size_t len)
{
	return gpu_vendor_has_device(gpu_vendor(), path, len);
}
