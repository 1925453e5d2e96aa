// SPDX-License-Identifier: MIT
/* See leftover.h. Only /proc is read. */
#include "process/leftover.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "base/fd.h"

enum { MAPS_BYTES_MAX = 64 * 1024 * 1024, PATH_COLUMN = 5 };

static bool is_named(const char *path, size_t len, const char *prefixes)
{
	for (const char *p = prefixes; *p;) {
		size_t n = strcspn(p, ":");

		if (n && n <= len && !memcmp(path, p, n))
			return true;
		p += n + (p[n] == ':');
	}
	return false;
}

/* Finds the path at the end of a line, after five words. It ends where the line does. */
static const char *path_of(const char *line, size_t *ret_len)
{
	const char *end = strchrnul(line, '\n');

	for (int i = 0; i < PATH_COLUMN && line < end; i++) {
		line += strcspn(line, " \n");
		line += strspn(line, " ");
	}
	*ret_len = line < end ? (size_t)(end - line) : 0;
	return line;
}

static bool is_library(const char *path, size_t len, const char *name)
{
	const char *base = memrchr(path, '/', len);
	size_t n = strlen(name);

	return base && (size_t)(path + len - base - 1) >= n && !memcmp(base + 1, name, n);
}

enum leftover leftover_judge(const char *maps, const char *prefixes, bool is_fork, char *ret_path,
			     size_t room)
{
	bool has_device = false, has_cuda = false, has_graphics = false;

	for (const char *line = maps; *line; line = strchrnul(line, '\n'), line += *line == '\n') {
		size_t len;
		const char *path = path_of(line, &len);

		if (!has_device && is_named(path, len, prefixes)) {
			has_device = true;
			if (ret_path)
				snprintf(ret_path, room, "%.*s", (int)len, path);
		}
		has_cuda |= is_library(path, len, "libcuda.so");
		has_graphics |= is_library(path, len, "libnvidia-glcore.so") ||
				is_library(path, len, "libnvidia-eglcore.so");
	}
	if (!has_device)
		return LEFTOVER_NONE;
	return is_fork && has_cuda && !has_graphics ? LEFTOVER_OF_FORK : LEFTOVER_STATE;
}

static bool is_known(struct proc_id id, const struct proc_id *gpus, size_t n_gpus)
{
	for (size_t i = 0; i < n_gpus; i++)
		if (proc_is_same(gpus[i], id))
			return true;
	return false;
}

static int refuse(const struct proc_info *p, const char *path, bool is_saved,
		  struct brumate_error *err)
{
	if (is_saved)
		return brumate_fail(
			err, EOPNOTSUPP,
			"process %d (%s) still maps %s: the driver has not saved all of "
			"its GPU state",
			p->id.pid, p->comm, path);
	brumate_fail(
		err, EOPNOTSUPP,
		"process %d (%s) maps %s, but the driver knows no CUDA state of it: what it has "
		"there would be lost",
		p->id.pid, p->comm, path);
	brumate_hint(err, "graphics and video on a GPU cannot be saved: end that process first");
	return -EOPNOTSUPP;
}

int leftover_check(const struct proc_tree *tree, const char *prefixes, const struct proc_id *gpus,
		   size_t n_gpus, struct brumate_error *err)
{
	int found = 0;

	for (size_t i = 0; i < tree->n; i++) {
		const struct proc_info *p = &tree->items[i];
		bool is_saved = is_known(p->id, gpus, n_gpus);
		char name[64], path[64];
		auto_free char *maps = NULL;

		snprintf(name, sizeof(name), "/proc/%d/maps", p->id.pid);
		if (p->state == 'Z' || file_read(AT_FDCWD, name, MAPS_BYTES_MAX, &maps, NULL) < 0)
			continue;
		enum leftover l = leftover_judge(maps, prefixes, p->is_fork, path, sizeof(path));
		if (l == LEFTOVER_STATE || (l == LEFTOVER_OF_FORK && is_saved))
			return refuse(p, path, is_saved, err);
		found |= l == LEFTOVER_OF_FORK;
	}
	return found;
}
