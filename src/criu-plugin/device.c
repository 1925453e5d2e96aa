// SPDX-License-Identifier: MIT
/*
 * Devices that CRIU cannot save and whose state need not be saved: children forked by a program that uses a GPU
 * inherit its descriptors and mappings and never use them. Handles only devices whose paths the environment names.
 *
 * A descriptor is recorded in a small file among CRIU's images, "brumate-device-ID.img": the path and the open flags.
 * A mapping is replaced by one of /dev/zero, which accepts any size, offset and protection: mapped shared it is plain
 * shared memory, which the next dump saves without us; mapped privately it is private memory.
 */
#include "criu-plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "criu-plugin/hidden.h"

enum {
	RECORD_BYTES_MAX = DEVICE_PATH_BYTES + 32,
	KEPT_FLAGS = O_ACCMODE | O_NONBLOCK | O_APPEND | O_SYNC | O_DSYNC | O_DIRECT | O_LARGEFILE,
};

static bool is_hidden(const char *path)
{
	return path_begins_with_one(path, strlen(path), getenv(HIDDEN_DEV_VARIABLE));
}

static bool is_device_path(const char *path)
{
	return !strncmp(path, "/dev/", 5) && !strstr(path, "/../") && !strpbrk(path, "\n ");
}

int device_decode(struct device_record *ret, const char *text, size_t len_bytes)
{
	struct device_record f;
	char line[RECORD_BYTES_MAX + 1], end;
	int used = 0;

	if (len_bytes > RECORD_BYTES_MAX || memchr(text, '\0', len_bytes))
		return -EBADMSG;
	memcpy(line, text, len_bytes);
	line[len_bytes] = '\0';
	if (sscanf(line, "%255s %x%c%n", f.path, (unsigned *)&f.flags, &end, &used) != 3 ||
	    end != '\n' || (size_t)used != len_bytes || !is_device_path(f.path) ||
	    (f.flags & ~KEPT_FLAGS))
		return -EBADMSG;
	*ret = f;
	return 0;
}

static void record_name(char ret[static 64], int id)
{
	snprintf(ret, 64, "brumate-device-%d.img", id);
}

/* The path in /dev behind @fd. Returns 0, -ENOTSUP (elsewhere), -errno. */
static int device_path(int fd, char *ret, size_t room)
{
	char link[48];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, ret, room - 1);
	if (n < 0)
		return -errno;
	ret[n] = '\0';
	return (size_t)n == room - 1 || !is_device_path(ret) ? -ENOTSUP : 0;
}

int device_dump_fd(int fd, int id)
{
	char path[DEVICE_PATH_BYTES], name[64], text[RECORD_BYTES_MAX];
	int r = device_path(fd, path, sizeof(path));
	int flags = fcntl(fd, F_GETFL);
	struct stat st;

	if (r < 0)
		return r;
	if (flags < 0 || fstat(fd, &st) < 0 || !S_ISCHR(st.st_mode) || !criu_get_image_dir ||
	    !is_hidden(path))
		return -ENOTSUP;
	if (!criu_hook_kinds()) /* better no image than one that cannot come back */
		return -ELIBBAD;
	record_name(name, id);
	auto_close int out = openat(criu_get_image_dir(), name,
				    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (out < 0)
		return -errno;
	int len = snprintf(text, sizeof(text), "%s %x\n", path, (unsigned)(flags & KEPT_FLAGS));
	return fd_write_full(out, text, (size_t)len);
}

int device_restore_fd(int id, bool *flag)
{
	struct device_record f;
	struct stat st;
	char name[64];
	size_t len;
	auto_free char *text = NULL;

	if (!criu_get_image_dir)
		return -ENOTSUP;
	record_name(name, id);
	int r = file_read(criu_get_image_dir(), name, RECORD_BYTES_MAX, &text, &len);
	if (r == -ENOENT)
		return -ENOTSUP;
	if (r < 0 || (r = device_decode(&f, text, len)) < 0)
		return r;
	if (!is_hidden(f.path))
		return -EPERM;
	if ((r = criu_no_retry(flag)) < 0)
		return r;
	int fd = open(f.path, f.flags | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) == 0 && S_ISCHR(st.st_mode))
		return fd;
	close(fd);
	return -ENODEV;
}

/* ---- mappings ---- */

int device_dump_map(int fd)
{
	char path[DEVICE_PATH_BYTES];
	int r = device_path(fd, path, sizeof(path));

	if (r < 0)
		return r;
	return is_hidden(path) ? 0 : -ENOTSUP;
}

int device_restore_map(const char *path, int *ret_fd)
{
	if (!is_hidden(path))
		return 0;
	int fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret_fd = fd;
	return 1;
}
