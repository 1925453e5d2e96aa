// SPDX-License-Identifier: MIT
/* Cgroups of both versions, by /proc/PID/cgroup and the mounts of this process. */
#include "container/cgroup.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "process/process.h"

enum { TEXT_BYTES_MAX = 1 << 20 };

/* Whether the list @options, parted by commas, begins as the list of controllers @wanted does, or has its first. */
static bool has_option(const char *options, const char *wanted)
{
	size_t len = strcspn(wanted, ",");

	for (const char *p = options; *p; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",\n");

		if (n == len && !strncmp(p, wanted, n))
			return true;
		p += n;
		if (*p == '\n')
			break;
	}
	return false;
}

/* Where the hierarchy with @controllers ("": of version 2) is mounted (owned), or NULL. A line of the table: device,
 * place, type, options. */
static char *find_mount(const char *mounts, const char *controllers)
{
	char place[256], type[32], options[256];

	for (const char *line = mounts; line && *line; line = strchr(line, '\n')) {
		line += *line == '\n';
		if (sscanf(line, "%*s %255s %31s %255s", place, type, options) != 3)
			continue;
		if (*controllers ? !strcmp(type, "cgroup") && has_option(options, controllers)
				 : !strcmp(type, "cgroup2"))
			return strdup(place);
	}
	return NULL;
}

/* @line: "ID:CONTROLLERS:PATH". */
static void join(const char *mounts, char *line)
{
	char *controllers = strchr(line, ':');
	char *path = controllers ? strchr(controllers + 1, ':') : NULL;

	if (!path)
		return;
	*path++ = '\0';
	auto_free char *mount = find_mount(mounts, controllers + 1);
	auto_free char *file = mount ? path_format("%s%s/cgroup.procs", mount, path) : NULL;
	auto_close int fd = file ? open(file, O_WRONLY | O_CLOEXEC) : -1;
	/* Where it is not allowed, all stays as it is. */
	if (fd >= 0)
		fd_write_full(fd, "0", 1);
}

void cgroup_join_parent_of(pid_t pid)
{
	auto_free char *cgroups = NULL, *mounts = NULL;
	struct proc_info info;
	char file[64];

	if (proc_read(&info, pid, NULL) < 0)
		return;
	snprintf(file, sizeof(file), "/proc/%d/cgroup", info.ppid);
	if (file_read(AT_FDCWD, file, TEXT_BYTES_MAX, &cgroups, NULL) < 0 ||
	    file_read(AT_FDCWD, "/proc/self/mounts", TEXT_BYTES_MAX, &mounts, NULL) < 0)
		return;
	char *rest = cgroups;
	for (char *line; (line = strsep(&rest, "\n"));)
		join(mounts, line);
}
