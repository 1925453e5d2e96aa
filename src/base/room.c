// SPDX-License-Identifier: MIT
/* The files of cgroups, read. See room.h. */
#include "base/room.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/machine.h"
#include "base/paths.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

enum { TEXT_BYTES_MAX = 1 << 16 };

/* The file @name of a cgroup, or NULL. */
static char *read_file(const char *cgroup, const char *name)
{
	auto_free char *path = path_format(CGROUP_ROOT "%s/%s", cgroup, name);
	char *text = NULL;

	if (!path || file_read(AT_FDCWD, path, TEXT_BYTES_MAX, &text, NULL) < 0)
		return NULL;
	return text;
}

static bool parse(const char *text, uint64_t *ret)
{
	unsigned long long bytes;

	if (!text || sscanf(text, "%llu", &bytes) != 1)
		return false;
	*ret = bytes;
	return true;
}

/* What one cgroup may have: beyond the one limit it is killed, beyond the other its threads are held up, as
 * memory of host copies cannot be taken back. */
static uint64_t limit_of(const char *cgroup)
{
	static const char *const names[] = { "memory.max", "memory.high" };
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < 2; i++) {
		auto_free char *text = read_file(cgroup, names[i]);
		uint64_t limit;

		if (parse(text, &limit) && limit < least) /* "max": no limit */
			least = limit;
	}
	return least;
}

/* What the kernel takes back before it ends anybody: cached files, and what it remembers of others. */
static uint64_t reclaimable(char *stat)
{
	static const char *const names[] = { "inactive_file", "active_file", "slab_reclaimable" };
	uint64_t sum = 0;
	char *rest = stat, *line;

	while ((line = strsep(&rest, "\n"))) {
		const char *name = strsep(&line, " ");
		uint64_t bytes;

		for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
			if (!strcmp(name, names[i]) && parse(line, &bytes))
				sum += bytes;
	}
	return sum;
}

uint64_t room_in_cgroup(const char *cgroup)
{
	auto_free char *current = read_file(cgroup, "memory.current");
	auto_free char *stat = read_file(cgroup, "memory.stat");
	uint64_t limit = limit_of(cgroup), used;

	if (limit == UINT64_MAX || !parse(current, &used))
		return UINT64_MAX;
	uint64_t freed = stat ? reclaimable(stat) : 0;
	used -= freed < used ? freed : used;
	return used < limit ? limit - used : 0;
}

char *room_cgroup(pid_t pid)
{
	auto_free char *path =
		pid ? path_format("/proc/%d/cgroup", pid) : strdup("/proc/self/cgroup");
	auto_fclose FILE *f = path ? fopen(path, "re") : NULL;
	char line[4096];

	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		if (!strncmp(line, "0::/", 4)) /* the one hierarchy of version 2 */
			return strdup(line[4] ? line + 3 : "");
	}
	return NULL;
}

bool room_go_out(char *cgroup)
{
	char *slash = strrchr(cgroup, '/');

	if (slash)
		*slash = '\0';
	return slash;
}

uint64_t room_memory_bytes(void)
{
	auto_free char *cgroup = room_cgroup(0);
	uint64_t left = UINT64_MAX;

	machine_meminfo("MemAvailable", &left);
	if (!cgroup)
		return left;
	do {
		uint64_t here = room_in_cgroup(cgroup);

		left = here < left ? here : left;
	} while (room_go_out(cgroup));
	return left;
}
