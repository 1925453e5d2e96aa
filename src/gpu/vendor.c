// SPDX-License-Identifier: MIT
/* See vendor.h. */
#include "gpu/vendor.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fd.h"
#include "base/paths.h"
#include "gpu/saved-by.h"

static bool is_here(const struct gpu_vendor *vendor)
{
	return !vendor->is_here || vendor->is_here();
}

/* The default's are recognised on any machine; what looks like another vendor's may be of a GPU that is not. */
static bool counts(const struct gpu_vendor *vendor)
{
	return vendor == gpu_vendors[0] || is_here(vendor);
}

const struct gpu_vendor *gpu_vendor_find(const char *id)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if (!strcmp((*v)->id, id))
			return *v;
	return NULL;
}

/* ---- kinds of GPUs ---- */

static const struct gpu_vendor *find_here(bool simulated)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if (simulated ? (*v)->simulated_driver != NULL : is_here(*v))
			return *v;
	return gpu_vendors[0];
}

struct gpu_kind gpu_kind_here(bool simulated)
{
	struct gpu_kind kind = { .simulated = simulated };

	snprintf(kind.vendor, sizeof(kind.vendor), "%s", find_here(simulated)->id);
	return kind;
}

const struct gpu_vendor *gpu_kind_vendor(const struct gpu_kind *kind)
{
	const struct gpu_vendor *vendor = gpu_vendor_find(kind->vendor);

	return vendor ? vendor : gpu_vendors[0];
}

bool gpu_kind_is_same(const struct gpu_kind *a, const struct gpu_kind *b)
{
	return gpu_kind_vendor(a) == gpu_kind_vendor(b) && a->simulated == b->simulated;
}

char *gpu_kind_broker(const struct gpu_kind *kind)
{
	const struct gpu_vendor *vendor = gpu_kind_vendor(kind);
	const bool is_default = vendor == gpu_vendors[0];

	return path_format("broker%s%s%s", is_default ? "" : "-", is_default ? "" : vendor->id,
			   kind->simulated ? "-simulated" : "");
}

/* ---- processes that CRIU's plugin left paused ---- */

void gpu_vendor_go_on(const struct gpu_vendor *vendor, pid_t pid)
{
	const struct gpu_saved_by *by = gpu_saved_by_find(vendor->id);
	auto_free char *path = path_format("/proc/%d/fd", (int)pid);
	auto_closedir DIR *dir = by && path ? dir_open(AT_FDCWD, path) : NULL;
	auto_close int process = (int)syscall(SYS_pidfd_open, pid, 0);
	struct dirent *e;

	while (dir && process >= 0 && dir_next(dir, &e) > 0) {
		char target[64];
		ssize_t n = readlinkat(dirfd(dir), e->d_name, target, sizeof(target));
		if (n <= 0 || !gpu_vendor_has_device(vendor, target, (size_t)n))
			continue;
		auto_close int fd = (int)syscall(SYS_pidfd_getfd, process, atoi(e->d_name), 0);
		if (fd >= 0)
			by->go_on(fd);
	}
}

/* ---- what a process has open or mapped ---- */

bool gpu_vendor_has_device(const struct gpu_vendor *vendor, const char *path, size_t len)
{
	return path_begins_with_one(path, len, vendor->devices);
}

const struct gpu_vendor *gpu_vendor_of_device(const char *path, size_t len)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if (gpu_vendor_has_device(*v, path, len) && counts(*v))
			return *v;
	return NULL;
}

bool gpu_is_device(const char *path, size_t len)
{
	return gpu_vendor_of_device(path, len);
}

const struct gpu_vendor *gpu_vendor_of_partition(const char *path)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if ((*v)->is_partition && (*v)->is_partition(path) && counts(*v))
			return *v;
	return NULL;
}

const struct gpu_vendor *gpu_vendor_of_service(const char *path)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if ((*v)->is_sharing_service && (*v)->is_sharing_service(path) && counts(*v))
			return *v;
	return NULL;
}

const struct gpu_vendor *gpu_vendor_of_managed(const char *maps)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if ((*v)->maps_managed_memory && (*v)->maps_managed_memory(maps) && counts(*v))
			return *v;
	return NULL;
}

const struct gpu_vendor *gpu_vendor_of_library(const char *maps)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++) {
		const char *name = (*v)->driver_library;

		for (const char *p = maps; (p = strstr(p, name)); p += strlen(name))
			if (p > maps && p[-1] == '/' && counts(*v))
				return *v;
	}
	return NULL;
}

bool gpu_clients_have_threads(void)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if (!(*v)->clients_have_threads && counts(*v))
			return false;
	return true;
}

bool gpu_is_interposer(const char *name)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if ((*v)->interposer && !strcmp(name, (*v)->interposer))
			return true;
	return false;
}

bool gpu_is_driver_thread(const char *name)
{
	for (const struct gpu_vendor *const *v = gpu_vendors; *v; v++)
		if ((*v)->driver_threads && counts(*v) &&
		    !strncmp(name, (*v)->driver_threads, strlen((*v)->driver_threads)))
			return true;
	return false;
}
