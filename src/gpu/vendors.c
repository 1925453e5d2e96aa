// SPDX-License-Identifier: MIT
/* The vendors: a row each. It is a file of its own so that a test can link a table of its own (test-other-vendor.c). */
#include "gpu/vendor.h"

#include <stddef.h>

extern const struct gpu_vendor gpu_vendor_amd, gpu_vendor_cuda;

const struct gpu_vendor *const gpu_vendors[] = {
	&gpu_vendor_cuda, /* the default: that of records and images which name none */
	&gpu_vendor_amd,
	NULL,
};
