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

/* A cgroup's files. Above the first limit a process in it is killed; above the second its threads are throttled,
 * because the memory of host copies cannot be reclaimed. */
struct memory_files {
	const char *limits[2], *used;
	/* in "memory.stat": what the kernel reclaims before it kills: cached files and reclaimable slab */
	const char *reclaimable[3];
};

static const struct memory_files version_2 = {
	{ "memory.max", "memory.high" },
	"memory.current",
	{ "inactive_file", "active_file", "slab_reclaimable" },
};

static const struct memory_files version_1 = {
	{ "memory.limit_in_bytes" },
	"memory.usage_in_bytes",
	{ "total_inactive_file", "total_active_file" },
};

static const struct memory_files *files_of(const char *cgroup)
{
	auto_free char *used = read_cgroup_file(cgroup, version_1.used);

	return used ? &version_1 : &version_2;
}

/* The lowest memory limit of one cgroup. */
static uint64_t limit_of(const char *cgroup, const struct memory_files *files)
{
	uint64_t least = UINT64_MAX;

	for (size_t i = 0; i < 2 && files->limits[i]; i++) {
		auto_free char *text = read_cgroup_file(cgroup, files->limits[i]);
		uint64_t limit;

		/* Without a limit it is "max", or in version 1 almost INT64_MAX, in whole pages. */
		if (parse_bytes(text, &limit) && limit < least && limit < INT64_MAX / 2)
			least = limit;
	}
	return least;
}

static uint64_t reclaimable(char *stat, const struct memory_files *files)
{
	uint64_t sum = 0;
	char *rest = stat, *line;

	while ((line = strsep(&rest, "\n"))) {
		const char *name = strsep(&line, " ");
		uint64_t bytes;

		for (size_t i = 0; i < 3 && files->reclaimable[i]; i++)
			if (!strcmp(name, files->reclaimable[i]) && parse_bytes(line, &bytes))
				sum += bytes;
	}
	return sum;
}

uint64_t machine_cgroup_room_bytes(const char *cgroup)
{
	const struct memory_files *files = files_of(cgroup);
	auto_free char *current = read_cgroup_file(cgroup, files->used);
	auto_free char *stat = read_cgroup_file(cgroup, "memory.stat");
	uint64_t limit = limit_of(cgroup, files), used;

	if (limit == UINT64_MAX || !parse_bytes(current, &used))
		return UINT64_MAX;
	uint64_t freed = stat ? reclaimable(stat, files) : 0;
	used -= freed < used ? freed : used;
	return used < limit ? limit - used : 0;
}

/* The cgroup in the hierarchy of version 2; @line: "ID:CONTROLLERS:PATH". */
static char *version_2_cgroup(const char *line)
{
	return strncmp(line, "0::/", 4) ? NULL : strdup(line[4] ? line + 3 : "");
}

/* The cgroup in the hierarchy of version 1 with @controller, if that is mounted at its usual place. */
static char *version_1_cgroup(const char *line, const char *controller)
{
	const char *found = strchr(line, ':');
	size_t len = strlen(controller);

	if (!found || strncmp(found + 1, controller, len) || strncmp(found + 1 + len, ":/", 2))
		return NULL;
	const char *path = found + len + 3;
	return path_format("/%s%s%s", controller, *path ? "/" : "", path);
}

static char *memory_cgroup(const char *line)
{
	auto_free char *cgroup = version_1_cgroup(line, "memory");
	auto_free char *used = cgroup ? read_cgroup_file(cgroup, version_1.used) : NULL;

	return used ? take_ptr(&cgroup) : NULL;
}

static FILE *open_cgroups(pid_t pid)
{
	auto_free char *path =
		pid ? path_format("/proc/%d/cgroup", pid) : strdup("/proc/self/cgroup");

	return path ? fopen(path, "re") : NULL;
}

char *machine_cgroup(pid_t pid)
{
	auto_fclose FILE *f = open_cgroups(pid);
	auto_free char *found = NULL;
	char line[4096];

	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		char *limits = memory_cgroup(line);
		if (limits)
			return limits;
		if (!found)
			found = version_2_cgroup(line);
	}
	return take_ptr(&found);
}

/* Whether the file of a cgroup has a line that starts with @word. */
static bool says(char *cgroup, const char *name, const char *word)
{
	auto_free char *text = cgroup ? read_cgroup_file(cgroup, name) : NULL;
	const char *at = text ? strstr(text, word) : NULL;

	return at && (at == text || at[-1] == '\n');
}

char *machine_frozen_cgroup(pid_t pid)
{
	auto_fclose FILE *f = open_cgroups(pid);
	char line[4096];

	while (f && fgets(line, sizeof(line), f)) {
		line[strcspn(line, "\n")] = '\0';
		auto_free char *one = version_1_cgroup(line, "freezer");
		auto_free char *two = version_2_cgroup(line);
		if (says(one, "freezer.state", "FROZEN"))
			return take_ptr(&one);
		if (says(two, "cgroup.events", "frozen 1"))
			return take_ptr(&two);
	}
	return NULL;
}

bool machine_is_frozen(pid_t pid)
{
	auto_free char *cgroup = machine_frozen_cgroup(pid);

	return cgroup;
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
	uint64_t left = 0;

	machine_meminfo("MemAvailable", &left);
	if (!cgroup)
		return left;
	do {
		uint64_t here = machine_cgroup_room_bytes(cgroup);

		left = here < left ? here : left;
	} while (machine_cgroup_go_out(cgroup));
	return left;
}
