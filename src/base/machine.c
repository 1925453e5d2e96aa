// SPDX-License-Identifier: MIT
/* See machine.h. */
#include "base/machine.h"
#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define CGROUP_ROOT "/sys/fs/cgroup"

enum { TEXT_BYTES_MAX = 1 << 16 };

bool machine_meminfo(const char *key, uint64_t *ret_bytes)
{
	auto_fclose FILE *f = fopen("/proc/meminfo", "re");
	char line[256];
	unsigned long long kib;
	size_t len = strlen(key);

	while (f && fgets(line, sizeof(line), f)) {
		if (strncmp(line, key, len) || sscanf(line + len, ": %llu", &kib) != 1)
			continue;
		*ret_bytes = kib << 10;
		return true;
	}
	return false;
}

uint64_t machine_pool_bytes(void)
{
	uint64_t total = 0;

	machine_meminfo("MemTotal", &total);
	return total / 2;
}

unsigned machine_cores(void)
{
	cpu_set_t cpus;

	return sched_getaffinity(0, sizeof(cpus), &cpus) < 0 ? 1 : (unsigned)CPU_COUNT(&cpus);
}

/* ---- cgroups ---- */

/* The file @name of a cgroup, or NULL. */
static char *read_cgroup_file(const char *cgroup, const char *name)
{
	auto_free char *path = path_format(CGROUP_ROOT "%s/%s", cgroup, name);
	char *text = NULL;

	if (!path || file_read(AT_FDCWD, path, TEXT_BYTES_MAX, &text, NULL) < 0)
		return NULL;
	return text;
}

static bool parse_bytes(const char *text, uint64_t *ret)
{
	unsigned long long bytes;

	if (!text || sscanf(text, "%llu", &bytes) != 1)
		return false;
	*ret = bytes;
	return true;
}

/* The bytes that one cgroup may have. Beyond the one limit a process in it is killed; beyond the other its threads
 * are held up, because the memory of host copies cannot be taken back. */
static uint64_t limit_of(const char *cgroup)
{
	static const char *const names[] = { "memory.max", "memory.high" };
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < 2; i++) {
		auto_free char *text = read_cgroup_file(cgroup, names[i]);
		uint64_t limit;

		if (parse_bytes(text, &limit) && limit < least) /* "max": no limit */
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
			if (!strcmp(name, names[i]) && parse_bytes(line, &bytes))
				sum += bytes;
	}
	return sum;
}

uint64_t machine_cgroup_room_bytes(const char *cgroup)
{
	auto_free char *current = read_cgroup_file(cgroup, "memory.current");
	auto_free char *stat = read_cgroup_file(cgroup, "memory.stat");
	uint64_t limit = limit_of(cgroup), used;

	if (limit == UINT64_MAX || !parse_bytes(current, &used))
		return UINT64_MAX;
	uint64_t freed = stat ? reclaimable(stat) : 0;
	used -= freed < used ? freed : used;
	return used < limit ? limit - used : 0;
}

char *machine_cgroup(pid_t pid)
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

bool machine_cgroup_go_out(char *cgroup)
{
	char *slash = strrchr(cgroup, '/');

	if (slash)
		*slash = '\0';
	return slash;
}

uint64_t machine_room_bytes(void)
{
	auto_free char *cgroup = machine_cgroup(0);
	uint64_t left = UINT64_MAX;

	machine_meminfo("MemAvailable", &left);
	if (!cgroup)
		return left;
	do {
		uint64_t here = machine_cgroup_room_bytes(cgroup);

		left = here < left ? here : left;
	} while (machine_cgroup_go_out(cgroup));
	return left;
}
