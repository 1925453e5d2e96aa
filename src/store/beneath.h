// SPDX-License-Identifier: MIT
/*
 * Opening what a manifest names: beneath the directory of its checkpoint, never through a link, and
 * never a device or a pipe that would block or act. By openat2(2); where the kernel lacks it (before
 * 5.6, or a filter forbids it), one part of the path after the other with O_NOFOLLOW.
 */
#pragma once

#include <sys/stat.h>

/**
 * Opens the regular file @path beneath @dir_fd for reading, @ret_st its status (may be NULL).
 * Returns an owned fd; -EXDEV or -ELOOP for a path that leaves or a link; -EMEDIUMTYPE if it is no
 * regular file; -errno.
 */
int beneath_open_file(int dir_fd, const char *path, struct stat *ret_st);

/** The fallback, for itself: as openat2(2) with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS. */
int beneath_open_walk(int dir_fd, const char *path, int flags);
