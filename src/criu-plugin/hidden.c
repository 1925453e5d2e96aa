// SPDX-License-Identifier: MIT
/* See hidden.h. Used by the shim, and by a plugin that makes its own table; the plugin has no library but libc. */
#include "criu-plugin/hidden.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"

int hidden_table_new(void)
{
	const uint32_t magic = HIDDEN_MAGIC;
	auto_close int fd = memfd_create("brumate-hidden", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	if (fd < 0 || ftruncate(fd, sizeof(struct hidden_table)) < 0 ||
	    pwrite(fd, &magic, sizeof(magic), offsetof(struct hidden_table, magic)) < 0)
		return -errno;
	/* CRIU may run as a user: if it truncated the table, processes that map it would get SIGBUS. */
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return -errno;
	return take_fd(&fd);
}
