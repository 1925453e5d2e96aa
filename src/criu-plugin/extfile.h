// SPDX-License-Identifier: MIT
/* Descriptors of devices that CRIU cannot save and that hold nothing worth saving: opened anew. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Records the device behind @fd under the number that CRIU gives it. 0, -ENOTSUP (not one of those
 * named by the environment), -errno. */
int extfile_dump(int fd, int id);

/** Opens it in the task being restored. The fd, -ENOTSUP, -errno. */
int extfile_restore(int id, bool *ret_retry);

/** The path in /dev behind @fd. 0, -ENOTSUP (elsewhere), -errno. */
int extfile_path(int fd, char *ret, size_t room);

enum { EXTFILE_PATH_BYTES = 256 };

/** A record: what is opened, and how. */
struct extfile {
	char path[EXTFILE_PATH_BYTES];
	int flags;
};

/** Reads a record. Pure, for foreign bytes. 0, -EBADMSG. */
int extfile_decode(struct extfile *ret, const char *text, size_t len_bytes);

/** True if @path begins with one of @prefixes, which are parted by colons. Pure. */
bool extfile_is_named(const char *path, const char *prefixes);
