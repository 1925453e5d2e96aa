// SPDX-License-Identifier: MIT
/*
 * /dev/zero takes any size, offset and protection. Mapped shared it is plain shared memory, which the next
 * dump saves without us; mapped privately it is private memory.
 */
#include "criu-plugin/device-map.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>

#include "criu-plugin/extfile.h"
#include "criu-plugin/hidden.h"

int device_map_dump(int fd)
{
	char path[EXTFILE_PATH_BYTES];
	int r = extfile_path(fd, path, sizeof(path));

	if (r < 0)
		return r;
	return extfile_is_named(path, getenv(HIDDEN_DEV_VARIABLE)) ? 0 : -ENOTSUP;
}

int device_map_restore(const char *path, int *ret_fd)
{
	if (!extfile_is_named(path, getenv(HIDDEN_DEV_VARIABLE)))
		return 0;
	int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 1;
}
