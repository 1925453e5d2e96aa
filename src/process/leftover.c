// SPDX-License-Identifier: MIT
/* See leftover.h. Only /proc is read. */
#include "process/leftover.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { MAPS_BYTES_MAX = 64 * 1024 * 1024, PATH_COLUMN = 5 };

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

/* Whether @vendor has a library of that name, which is not saved. */
static bool is_graphics(const struct gpu_vendor *vendor, const char *path, size_t len)
{
	for (const char *const *name = vendor->graphics_libraries; *name; name++)
		if (is_library(path, len, *name))
			return true;
	return false;
}

enum leftover leftover_judge(const char *maps, const struct gpu_vendor *vendor, bool is_fork,
			     char *ret_path, size_t room)
{
	bool has_device = false, has_driver = false, has_graphics = false;

	for (const char *line = maps; *line; line = strchrnul(line, '\n'), line += *line == '\n') {
		size_t len;
		const char *path = path_of(line, &len);

		if (!has_device && gpu_vendor_has_device(vendor, path, len)) {
			has_device = true;
			if (ret_path)
				snprintf(ret_path, room, "%.*s", (int)len, path);
		}
		has_driver |= is_library(path, len, vendor->driver_library);
		has_graphics |= is_graphics(vendor, path, len);
	}
	if (!has_device)
		return LEFTOVER_NONE;
	return is_fork && has_driver && !has_graphics ? LEFTOVER_OF_FORK : LEFTOVER_STATE;
}

static bool is_known(struct proc_id id, const struct proc_id *gpus, size_t n_gpus)
{
	for (size_t i = 0; i < n_gpus; i++)
		if (proc_is_same(gpus[i], id))
			return true;
	return false;
}

static int refuse(const struct gpu_vendor *vendor, const struct proc_info *p, const char *path,
		  bool is_saved, struct brumate_error *err)
{
	if (is_saved)
		return brumate_fail(
			err, EOPNOTSUPP,
			"process %d (%s) still maps %s: the driver has not saved all of "
			"its GPU state",
			p->id.pid, p->comm, path);
	brumate_fail(err, EOPNOTSUPP,
		     "process %d (%s) maps %s, but the driver knows no %s state of it: what it has "
		     "there would be lost",
		     p->id.pid, p->comm, path, vendor->api);
	brumate_hint(err, "graphics and video on a GPU cannot be saved: end that process first");
	return -EOPNOTSUPP;
}

int leftover_check(const struct proc_tree *tree, const struct gpu_vendor *vendor,
		   const struct proc_id *gpus, size_t n_gpus, struct brumate_error *err)
{
	int found = 0;

	for (size_t i = 0; i < tree->n; i++) {
		const struct proc_info *p = &tree->items[i];
		bool is_saved = is_known(p->id, gpus, n_gpus);
		char path[64];
		auto_free char *maps = NULL;

		if (is_saved && vendor->saved_by_criu)
			continue;
		if (p->state == 'Z' ||
		    proc_file_read(p->id.pid, "maps", MAPS_BYTES_MAX, &maps, NULL) < 0)
			continue;
		enum leftover l = leftover_judge(maps, vendor, p->is_fork, path, sizeof(path));
		if (l == LEFTOVER_STATE || (l == LEFTOVER_OF_FORK && is_saved))
			return refuse(vendor, p, path, is_saved, err);
		found |= l == LEFTOVER_OF_FORK;
	}
	return found;
}
