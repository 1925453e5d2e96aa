// SPDX-License-Identifier: MIT
/*
 * brumate's CRIU plugin. It hides from CRIU the memory that the shim saves by itself (hidden.h), by
 * standing between CRIU and the kernel where it asks which pages a process has; it writes down filters of system
 * calls, since CRIU is who traces the processes; and it opens leftover descriptors of devices anew. It decides nothing, changes nothing in a task, and owns nothing but
 * its view of the table.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-plugin/plugin.h"

#define say(level, ...)                                                 \
	do {                                                            \
		if (print_on_level)                                     \
			print_on_level(level, "brumate: " __VA_ARGS__); \
	} while (0)

static struct hidden_table *table;
static bool is_named; /* in the image: a restore without us is refused */

static int (*real_ioctl)(int fd, unsigned long request, ...);
static ssize_t (*real_pread)(int fd, void *buf, size_t len_bytes, off_t offset);
static const char *const pread_names[] = { "pread64", "pread" };

static bool something_is_hidden(void)
{
	return table && atomic_load_explicit(&table->n, memory_order_acquire);
}

static int64_t pid_of_pagemap(int fd)
{
	char link[48], path[128];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = readlink(link, path, sizeof(path) - 1);
	path[n > 0 ? n : 0] = '\0';
	return pagemap_pid(path);
}

static int scan(int fd, struct pagemap_scan *s)
{
	return real_ioctl(fd, PAGEMAP_SCAN_REQUEST, s);
}

/* Names the plugin in the image, before the first page is left out. */
static bool name_in_image(void)
{
	if (!is_named)
		is_named = add_inventory_plugin && add_inventory_plugin(HIDDEN_PLUGIN_NAME) == 0;
	return is_named;
}

static int our_ioctl(int fd, unsigned long request, ...)
{
	va_list list;

	va_start(list, request);
	void *arg = va_arg(list, void *);
	va_end(list);
	if (request != PAGEMAP_SCAN_REQUEST || !something_is_hidden() || !name_in_image())
		return real_ioctl(fd, request, arg);
	return pagemap_scan_hidden(table, pid_of_pagemap(fd), fd, arg, scan);
}

static ssize_t our_pread(int fd, void *buf, size_t len_bytes, off_t offset)
{
	ssize_t n = real_pread(fd, buf, len_bytes, offset);
	int saved = errno;
	int64_t pid = n > 0 && something_is_hidden() ? pid_of_pagemap(fd) : 0;

	if (pid && name_in_image())
		pagemap_clear_hidden(table, pid, buf, (size_t)n, offset,
				     (size_t)sysconf(_SC_PAGESIZE));
	errno = saved;
	return n;
}

static int map_table(const char *number)
{
	struct stat st;
	int fd = atoi(number);

	if (fstat(fd, &st) < 0 || st.st_size < (off_t)sizeof(struct hidden_table))
		return -EBADMSG;
	struct hidden_table *t = mmap(NULL, sizeof(*t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (t == MAP_FAILED)
		return -errno;
	if (t->magic != HIDDEN_MAGIC) {
		munmap(t, sizeof(*t));
		return -EBADMSG;
	}
	table = t;
	return 0;
}

/* Where any of this fails, CRIU saves all memory by itself. */
static int init_dump(const char *number)
{
	if (!number || map_table(number) < 0)
		return 0;
	table->filters.error = table->filters.n = table->filters.used_bytes = 0;
	real_ioctl = import_replace("ioctl", (void *)our_ioctl);
	for (size_t i = 0; i < 2 && !real_pread; i++)
		real_pread = import_replace(pread_names[i], (void *)our_pread);
	if (real_ioctl && real_pread)
		atomic_store(&table->is_heeded, 1);
	else
		say(CRIU_LOG_WARNING,
		    "this CRIU's page scan cannot be seen: all memory is its own\n");
	return 0;
}

static int init_restore(const char *number)
{
	bool needed =
		check_and_remove_inventory_plugin &&
		check_and_remove_inventory_plugin(HIDDEN_PLUGIN_NAME, strlen(HIDDEN_PLUGIN_NAME));

	if (!needed || (number && map_table(number) == 0))
		return 0;
	say(CRIU_LOG_ERROR, "memory of this image is stored separately: only `brumate restore` can "
			    "bring it back\n");
	return -EPERM;
}

static int init_plugin(int stage)
{
	const char *number = getenv(HIDDEN_FD_VARIABLE);

	if (stage == CRIU_STAGE_DUMP)
		return init_dump(number);
	return stage == CRIU_STAGE_RESTORE ? init_restore(number) : 0;
}

/* CRIU unloads the plugin, and goes on. */
static void end_plugin(int stage, int result)
{
	(void)stage;
	(void)result;
	if (real_ioctl)
		import_replace("ioctl", (void *)real_ioctl);
	for (size_t i = 0; i < 2 && real_pread; i++)
		import_replace(pread_names[i], (void *)real_pread);
}

/* Leaves the process to whatever other plugin there is. */
static int checkpoint_devices(int pid)
{
	if (table)
		filters_read(&table->filters, pid);
	return -ENOTSUP;
}

static int dump_ext_file(int fd, int id)
{
	int r = device_dump_fd(fd, id);

	if (r < 0 && r != -ENOTSUP)
		say(CRIU_LOG_ERROR, "cannot record the device of descriptor %d: %s\n", fd,
		    strerror(-r));
	return r;
}

static int restore_ext_file(int id, bool *retry)
{
	int r = device_restore_fd(id, retry);

	if (r < 0 && r != -ENOTSUP)
		say(CRIU_LOG_ERROR, "cannot reopen device %d: %s\n", id, strerror(-r));
	return r;
}

/* CRIU takes a negative answer of any kind for its failure. */
static int handle_device_vma(int fd, const struct stat *st)
{
	(void)st;
	if (!table || !atomic_load_explicit(&table->may_lose_maps, memory_order_acquire))
		return -ENOTSUP;
	int r = device_dump_map(fd);
	return r == 0 && !name_in_image() ? -EIO : r;
}

static int update_vma_map(const char *path, const uint64_t address, const uint64_t old_offset,
			  uint64_t *new_offset, int *fd)
{
	int r = device_restore_map(path, fd);

	(void)address;
	(void)old_offset;
	if (r == 1)
		*new_offset = 0;
	else if (r < 0)
		say(CRIU_LOG_ERROR, "cannot put zeroes in the place of %s: %s\n", path,
		    strerror(-r));
	return r;
}

__attribute__((visibility("default"))) extern struct criu_plugin CR_PLUGIN_DESC;
struct criu_plugin CR_PLUGIN_DESC = {
	.name = HIDDEN_PLUGIN_NAME,
	.init = init_plugin,
	.exit = end_plugin,
	.version = CRIU_PLUGIN_ABI,
	.n_hooks = CRIU_HOOKS,
	.hooks = {
		[CRIU_HOOK_DUMP_EXT_FILE] = (void *)dump_ext_file,
		[CRIU_HOOK_RESTORE_EXT_FILE] = (void *)restore_ext_file,
		[CRIU_HOOK_HANDLE_DEVICE_VMA] = (void *)handle_device_vma,
		[CRIU_HOOK_UPDATE_VMA_MAP] = (void *)update_vma_map,
		[CRIU_HOOK_CHECKPOINT_DEVICES] = (void *)checkpoint_devices,
	},
};
