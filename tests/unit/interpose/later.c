// SPDX-License-Identifier: MIT
/* A library that is linked with the driver and loaded late: how it gets at cuDriverGetVersion. */
#include <dlfcn.h>

#include "gpu/cuda/abi.h"
#include "later.h"

__attribute__((visibility("default"))) void *later_find(enum later_way way)
{
	switch (way) {
	case LATER_LINKED:
		return (void *)cuDriverGetVersion;
	case LATER_HANDLE:
		return dlsym(dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL), "cuDriverGetVersion");
	case LATER_DEFAULT:
		return dlsym(RTLD_DEFAULT, "cuDriverGetVersion");
	case LATER_NEXT:
		return dlsym(RTLD_NEXT, "cuDriverGetVersion");
	}
	return NULL;
}

/* The program's own function of a driver's name stays its own. */
__attribute__((visibility("default"))) int cuOwnFunction(void);

int cuOwnFunction(void)
{
	return 4711;
}
