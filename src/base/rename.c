// SPDX-License-Identifier: MIT
/* A rename that replaces nothing; see fd.h. Apart from fd.c, which the library is linked with: its calls are newer than the C
 * libraries that containers may have. */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

int rename_new(int from_dir_fd, const char *from, int to_dir_fd, const char *to)
{
	struct stat st;

	if (renameat2(from_dir_fd, from, to_dir_fd, to, RENAME_NOREPLACE) == 0)
		return 0;
	if (errno != EINVAL && errno != ENOSYS)
		return -errno;
	/* NFS and others have no such call: the new name of a file comes first, and is not replaced by that. */
	if (linkat(from_dir_fd, from, to_dir_fd, to, 0) == 0)
		return unlinkat(from_dir_fd, from, 0) < 0 ? -errno : 0;
	if (errno == EEXIST)
		return -EEXIST;
	/* A directory, or no links there. rename(2) never replaces a directory that is not empty. */
	if (fstatat(to_dir_fd, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return -EEXIST;
	if (renameat(from_dir_fd, from, to_dir_fd, to) == 0)
		return 0;
	return errno == ENOTEMPTY ? -EEXIST : -errno;
}
