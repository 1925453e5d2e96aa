// SPDX-License-Identifier: MIT
/* See cgroup.h. */
#include "edges/slurm/cgroup.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char root[] = "/sys/fs/cgroup";
/* Of version 1: what freezes, what limits, and the device files that a step may not open. */
static const char *const moved[] = { "freezer", "memory", "devices", "pids", "name=systemd" };

static bool names_slurm(const char *path)
{
	return strstr(path, "/slurm") || strstr(path, "slurmstepd") ||
	       strstr(path, "system.slice/slurm");
}

void cgroup_target(char ret[static 256], const char *line, uid_t uid)
{
	const char *controllers = strchr(line, ':');
	const char *path = controllers ? strchr(controllers + 1, ':') : NULL;

	*ret = '\0';
	if (!path || !names_slurm(path + 1))
		return;
	const size_t len = (size_t)(path - controllers - 1);
	if (len == 0) {
		snprintf(ret, 256, "brumate/%u", (unsigned)uid);
		return;
	}
	for (size_t i = 0; i < sizeof(moved) / sizeof(*moved); i++)
		if (strlen(moved[i]) == len && !memcmp(controllers + 1, moved[i], len))
			snprintf(ret, 256, "%s/brumate/%u",
				 strncmp(moved[i], "name=", 5) ? moved[i] : moved[i] + 5,
				 (unsigned)uid);
}

static void enter(const char *target, pid_t pid)
{
	char path[PATH_MAX], *slash;

	snprintf(path, sizeof(path), "%s/%s", root, target);
	slash = strrchr(path, '/');
	*slash = '\0';
	mkdir(path, 0755);
	*slash = '/';
	mkdir(path, 0755);
	strncat(path, "/cgroup.procs", sizeof(path) - strlen(path) - 1);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	dprintf(fd, "%d\n", (int)pid);
	close(fd);
}

void cgroup_move_out(pid_t pid, uid_t uid)
{
	char path[64], line[4096], target[256];

	snprintf(path, sizeof(path), "/proc/%d/cgroup", (int)pid);
	FILE *f = fopen(path, "re");
	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		cgroup_target(target, line, uid);
		if (*target)
			enter(target, pid);
	}
	if (f)
		fclose(f);
}
