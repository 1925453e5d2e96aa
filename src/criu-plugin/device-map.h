// SPDX-License-Identifier: MIT
/* Mappings of devices that a fork left in a process which can never use them: zeroes stand there after a
 * restore. */
#pragma once

/** Whether CRIU may leave the mapping of the file behind @fd to us: 0, -ENOTSUP (not a device named by the
 * environment), -errno. */
int device_map_dump(int fd);

/**
 * What is mapped in the task being restored in place of @path, from its beginning: 1 and the fd, 0 (not a device
 * named by the environment), -errno. The fd is a new one each time; it is for whoever is given it to close.
 */
int device_map_restore(const char *path, int *ret_fd);
