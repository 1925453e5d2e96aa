// SPDX-License-Identifier: MIT
/* Checks of memory, limits and space, against the device memory that may have to be saved. */
#include "service/doctor.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/conf.h"
#include "base/machine.h"
#include "base/paths.h"
#include "service/access.h"
#include "store/store.h"

enum { NOFILE_WANTED = 65536 };

static void check_memory(struct doctor *d)
{
	uint64_t available;

	if (!machine_meminfo("MemAvailable", &available))
		return;
	fact(d, "memory_available_bytes", json_integer((json_int_t)available));
	if (available < d->vram_bytes && available + d->room.disk_bytes >= d->vram_bytes)
		finding(d, FINDING_NOTE, "memory",
			"add memory: host copies on a disk are as fast as the disk",
			"%.1f GB of memory available, %.1f GB on all GPUs: the rest would go to %s",
			(double)available / 1e9, (double)d->vram_bytes / 1e9, d->room.disk);
	else if (available < d->vram_bytes)
		finding(d, FINDING_WARN, "memory",
			"add memory, or suspend fewer jobs at a time: saved device memory is kept "
			"in it",
			"%.1f GB of memory available, %.1f GB on all GPUs", (double)available / 1e9,
			(double)d->vram_bytes / 1e9);
	else
		finding(d, FINDING_OK, "memory", "", "%.1f GB available", (double)available / 1e9);
}

/* As the broker reads it: broker/pool.c. */
static void check_pool(struct doctor *d)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	uint64_t total = 0, pool = 0;

	if (conf_load(&conf, NULL) < 0 || !machine_meminfo("MemTotal", &total))
		return; /* the check of the configuration says why */
	pool = conf.pool_bytes ? conf.pool_bytes : total / 4;
	fact(d, "pool_bytes", json_integer((json_int_t)pool));
	if (pool > total / 2)
		finding(d, FINDING_WARN, "pool", "lower Pool= in [Broker] of brumate.conf",
			"up to %.1f GB may be pinned for copies of device memory, more than half "
			"of this machine's memory",
			(double)pool / 1e9);
	else
		finding(d, FINDING_OK, "pool", "",
			"up to %.1f GB may be pinned for copies of device memory",
			(double)pool / 1e9);
}

/* Where host copies go that memory has no room for. */
static void check_spill(struct doctor *d)
{
	if (!d->room.disk[0])
		return; /* the check of the driver says why */
	fact(d, "copies",
	     json_pack("{s:I,s:I,s:s}", "memory_bytes", (json_int_t)d->room.memory_bytes,
		       "disk_bytes", (json_int_t)d->room.disk_bytes, "disk", d->room.disk));
	if (!d->room.disk_bytes)
		finding(d, FINDING_NOTE, "spill",
			"set SpillDirectory= in [Broker] of brumate.conf to a directory on a disk",
			"copies of device memory must fit into the %.1f GB of memory that they may "
			"have: %s is in memory, or full",
			(double)d->room.memory_bytes / 1e9, d->room.disk);
	else
		finding(d, FINDING_OK, "spill", "",
			"copies of device memory may have %.1f GB of memory, then %.1f GB in %s, "
			"encrypted",
			(double)d->room.memory_bytes / 1e9, (double)d->room.disk_bytes / 1e9,
			d->room.disk);
}

static void check_pages(struct doctor *d)
{
	char thp[64] = "";
	uint64_t huge = 0;

	read_line("/sys/kernel/mm/transparent_hugepage/enabled", thp, sizeof(thp));
	if (strstr(thp, "[always]"))
		finding(d, FINDING_OK, "huge-pages", "", "transparent huge pages for everybody");
	else
		finding(d, FINDING_NOTE, "huge-pages",
			"echo always > /sys/kernel/mm/transparent_hugepage/enabled",
			"transparent huge pages are not \"always\" (%s): the driver saves device "
			"memory a quarter slower",
			thp[0] ? thp : "not built in");
	if (machine_meminfo("Hugetlb", &huge) && huge)
		fact(d, "hugetlb_bytes", json_integer((json_int_t)huge));
}

static void check_limits(struct doctor *d)
{
	struct rlimit files, locked;

	getrlimit(RLIMIT_NOFILE, &files);
	getrlimit(RLIMIT_MEMLOCK, &locked);
	if (files.rlim_max < NOFILE_WANTED)
		finding(d, FINDING_WARN, "nofile",
			"raise the hard limit: ulimit -Hn 1048576 (LimitNOFILE=)",
			"only %llu open files allowed; large jobs need more",
			(unsigned long long)files.rlim_max);
	else
		finding(d, FINDING_OK, "nofile", "", "%llu open files allowed",
			(unsigned long long)files.rlim_max);
	if (locked.rlim_max != RLIM_INFINITY)
		finding(d, FINDING_NOTE, "memlock", "ulimit -Hl unlimited (LimitMEMLOCK=infinity)",
			"locked memory is limited to %.1f MB: programs that pin memory inherit "
			"that",
			(double)locked.rlim_max / 1e6);
	else
		finding(d, FINDING_OK, "memlock", "", "locked memory is not limited");
}

static void check_shm(struct doctor *d)
{
	struct statvfs fs;

	if (statvfs("/dev/shm", &fs) < 0 || !fs.f_blocks)
		finding(d, FINDING_WARN, "shm", "mount -t tmpfs tmpfs /dev/shm",
			"no /dev/shm: jobs of several processes need it");
	else
		finding(d, FINDING_OK, "shm", "", "/dev/shm holds %.1f GB",
			(double)fs.f_blocks * (double)fs.f_frsize / 1e9);
}

static void check_config(struct doctor *d)
{
	auto_(conf_fini) struct brumate_conf conf = BRUMATE_CONF_DEFAULT;
	struct brumate_error err = BRUMATE_ERROR_NONE;

	if (conf_load(&conf, &err) < 0) {
		finding_error(d, FINDING_FAIL, "config", &err);
		return;
	}
	for (size_t i = 0; i < conf.n_warnings; i++)
		finding(d, FINDING_WARN, "config", "see brumate.conf(5)", "%s", conf.warnings[i]);
	if (!conf.n_warnings)
		finding(d, FINDING_OK, "config", "", "%s%s", path_config(),
			access(path_config(), F_OK) < 0 ? " (not there: defaults)" : "");
}

static void check_store(struct doctor *d)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	struct service_call as_root = { 0 };
	auto_free char *dir = NULL;
	uint64_t free_bytes;

	if (access_store(&dir, &as_root, NULL, &err) < 0) {
		return; /* the check of the configuration says why */
	}
	fact(d, "store", json_string(dir));
	if (store_free_bytes(dir, &free_bytes, &err) < 0)
		finding_error(d, FINDING_FAIL, "space", &err);
	else if (free_bytes < d->vram_bytes)
		finding(d, FINDING_WARN, "space",
			"free some, or set Directory= in [Store] of brumate.conf to a larger file "
			"system",
			"%.1f GB free in %s, %.1f GB on all GPUs", (double)free_bytes / 1e9, dir,
			(double)d->vram_bytes / 1e9);
	else
		finding(d, FINDING_OK, "space", "", "%.1f GB free in %s", (double)free_bytes / 1e9,
			dir);
}

void doctor_room(struct doctor *d)
{
	check_memory(d);
	check_pool(d);
	check_spill(d);
	check_pages(d);
	check_limits(d);
	check_shm(d);
	check_config(d);
	check_store(d);
}
