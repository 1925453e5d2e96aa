// SPDX-License-Identifier: MIT
/*
 * brumate's CRIU plugin. It hides from CRIU the memory that the shim saves itself (hidden.h); records filters of
 * system calls, since CRIU traces the processes; restarts interrupted waits (calls.h); has restored threads make
 * calls for themselves; and reopens leftover descriptors of devices. It decides nothing, and owns nothing but its view
 * of the table.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "criu-plugin/calls.h"
#include "criu-plugin/plugin.h"
#include "criu-plugin/registers.h"

#define say(level, ...)                                                 \
	do {                                                            \
		if (print_on_level)                                     \
			print_on_level(level, "brumate: " __VA_ARGS__); \
	} while (0)

static struct hidden_table *table;
static bool is_named; /* in the image: a restore without us is refused */

/* Names the plugin in the image, before the first page is left out. */
static bool name_in_image(void)
{
	if (!is_named)
		is_named = add_inventory_plugin && add_inventory_plugin(HIDDEN_PLUGIN_NAME) == 0;
	return is_named;
}

/* Whether CRIU's code in a process lies in memory that can be written, which MDWE forbids: so compel links it for
 * architectures other than x86. */
#if defined(__x86_64__)
enum { RUNS_WRITTEN = false };
#else
enum { RUNS_WRITTEN = true };
#endif

/* Without memory that the shim saves, or a name in the image, CRIU saves it all. */
static int may_hide(void)
{
	return atomic_load_explicit(&table->n, memory_order_acquire) && name_in_image();
}

static bool map_table(const char *number)
{
	table = number ? hidden_table_map(atoi(number)) : NULL;
	return table != NULL;
}

/* Where any of this fails, CRIU saves all memory by itself. */
static int init_dump(const char *number)
{
	if (!map_table(number))
		return 0;
	table->threads = (struct thread_notes){ 0 };
	table->tellings.n = table->tellings.n_unknown = table->tellings.n_keyrings = 0;
	table->filters.error = table->filters.n = table->filters.used_bytes = 0;
	if (hide_begin(table, may_hide))
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

	if (!ties_begin())
		say(CRIU_LOG_WARNING, "this CRIU's calls cannot be seen: where it is killed, what "
				      "it restored runs for "
				      "a moment\n");
	if (!semaphores_begin())
		say(CRIU_LOG_WARNING,
		    "this CRIU's calls cannot be seen: it restores no semaphores\n");
	if (!listeners_begin())
		say(CRIU_LOG_WARNING,
		    "this CRIU's calls cannot be seen: it takes over no ports that are held\n");
	const bool has_table = map_table(number);
	if (!needed)
		return 0;
	int r = !criu_get_image_dir ? -ENOSYS : registers_check_permissions(criu_get_image_dir());
	if (r < 0)
		say(CRIU_LOG_ERROR, "Error (brumate): registers that the job uses (AMX): %s\n",
		    r == -EOPNOTSUPP ? "this processor has none" : strerror(-r));
	if (r < 0 || has_table)
		return r;
	say(CRIU_LOG_ERROR, "memory of this image is stored separately: only `brumate restore` can "
			    "bring it back\n");
	return -EPERM;
}

static int init_plugin(int stage)
{
	const char *number = getenv(HIDDEN_FD_VARIABLE), *why = "";
	int r = vendor_init(stage, &why);

	if (r < 0) {
		say(CRIU_LOG_ERROR, "Error (brumate): the plugin of the GPU's vendor: %s\n",
		    *why ? why : "it does not start");
		return r;
	}
	if (stage == CRIU_STAGE_DUMP)
		return init_dump(number);
	return stage == CRIU_STAGE_RESTORE ? init_restore(number) : 0;
}

/* CRIU unloads the plugin, and goes on. */
static void end_plugin(int stage, int result)
{
	vendor_end(stage, result);
	hide_end();
	ties_end();
	semaphores_end();
	listeners_end();
}

/* Returns 0, -errno: there is something that CRIU would lose. */
static int check_registers(int pid)
{
	struct registers_kept kept = { 0 };
	int r = registers_settle(pid, REGISTERS_SAVED, &kept);

	if (r > 0) {
		if (table && !table->threads.kept_by) {
			table->threads.kept_by = kept.tid;
			table->threads.kept = kept.lost;
		}
		return -EBUSY;
	}
	if (r == 0)
		r = !criu_get_image_dir ? -ENOSYS
					: registers_dump_permission(criu_get_image_dir(), pid);
	return r <= 0 ? r : name_in_image() ? 0 : -EIO;
}

static void note_error(int pid, int r)
{
	if (table && !table->threads.error) {
		table->threads.error = (uint32_t)-r;
		table->threads.pid = pid;
	}
}

/* Leaves the process to other plugins. The shim takes an error in the table for a failure. */
static int checkpoint_devices(int pid)
{
	int r = check_registers(pid);

	if (table && tellings_read(&table->tellings, pid) && RUNS_WRITTEN)
		table->threads.bound_pid = pid;
	unsigned n_early = calls_restart(pid);

	if (table) {
		table->threads.n_early_waits += n_early;
		filters_read(&table->filters, pid);
	}
	if (r < 0)
		note_error(pid, r);
	return r < 0 && !table ? r : -ENOTSUP;
}

static void restore_permission(int pid)
{
	int r = !criu_get_image_dir ? -ENOSYS
				    : registers_restore_permission(criu_get_image_dir(), pid);

	if (r < 0) {
		note_error(pid, r);
		say(CRIU_LOG_ERROR, "registers that process %d may use (AMX): %s\n", pid,
		    strerror(-r));
	}
}

/* Whether all calls could be made the shim sees by what they come to. */
static int resume_devices_late(int pid)
{
	int64_t r = table ? calls_make(table, pid) : 0;

	if (r < 0)
		say(CRIU_LOG_WARNING, "process %d: a call for itself: %s\n", pid,
		    strerror((int)-r));
	restore_permission(pid);
	int vendor = vendor_resume(pid);
	if (vendor < 0 && vendor != -ENOTSUP) {
		if (table)
			table->threads.gpu_pid = pid;
		say(CRIU_LOG_ERROR, "Error (brumate): the GPU of process %d does not go on\n", pid);
	}
	return -ENOTSUP;
}

static int dump_ext_file(int fd, int id)
{
	int r = device_dump_fd(fd, id);

	if (r < 0 && r != -ENOTSUP)
		say(CRIU_LOG_ERROR, "cannot record the device of descriptor %d: %s\n", fd,
		    criu_strerror(r));
	if (r != -ENOTSUP)
		return r;
	r = vendor_dump_file(fd, id);
	if (r < 0 && r != -ENOTSUP)
		say(CRIU_LOG_ERROR, "Error (brumate): the GPU's state was not saved\n");
	return r;
}

/* A new end of a TCP connection, which CRIU was given under this name. Returns the fd, -ENOTSUP (it is none), -ELIBBAD. */
static int restore_connection(int id, bool *flag)
{
	char key[64];

	snprintf(key, sizeof(key), HIDDEN_CONNECTION_KEY "%x", (unsigned)id);
	int fd = inherit_fd_lookup_id ? inherit_fd_lookup_id(key) : -1;
	if (fd < 0)
		return -ENOTSUP;
	int r = criu_no_retry(flag);
	if (r == 0)
		return fd;
	close(fd);
	return r;
}

static int restore_ext_file(int id, bool *flag)
{
	int r = restore_connection(id, flag);

	if (r == -ENOTSUP)
		r = device_restore_fd(id, flag);

	if (r < 0 && r != -ENOTSUP)
		say(CRIU_LOG_ERROR, "cannot reopen device %d: %s\n", id, criu_strerror(r));
	if (r != -ENOTSUP)
		return r;
	r = vendor_restore_file(id, flag);
	if (r < 0 && r != -ENOTSUP)
		say(CRIU_LOG_ERROR, "Error (brumate): the GPU's state was not restored\n");
	return r;
}

/* CRIU takes any negative result for a failure. */
static int handle_device_vma(int fd, const struct stat *st)
{
	int vendor = vendor_handle_map(fd, st);

	if (vendor != -ENOTSUP)
		return vendor;
	if (!table || !atomic_load_explicit(&table->may_lose_maps, memory_order_acquire))
		return -ENOTSUP;
	int r = device_dump_map(fd);
	return r == 0 && !name_in_image() ? -EIO : r;
}

static int update_vma_map(const char *path, const uint64_t address, const uint64_t old_offset,
			  uint64_t *new_offset, int *fd)
{
	int r = device_restore_map(path, fd);

	if (r == 0) {
		int vendor = vendor_update_map(path, address, old_offset, new_offset, fd);
		return vendor == -ENOTSUP ? 0 : vendor;
	}
	if (r == 1)
		*new_offset = 0;
	else if (r < 0)
		say(CRIU_LOG_ERROR, "cannot put zeroes in the place of %s: %s\n", path,
		    strerror(-r));
	return r;
}

__attribute__((visibility("default"))) extern struct cr_plugin CR_PLUGIN_DESC;
struct cr_plugin CR_PLUGIN_DESC = {
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
		[CRIU_HOOK_RESUME_DEVICES_LATE] = (void *)resume_devices_late,
		[CRIU_HOOK_CHECKPOINT_DEVICES] = (void *)checkpoint_devices,
	},
};

/* CRIU reads the number of hooks before it calls the first. */
__attribute__((constructor)) static void load_vendor(void)
{
	CR_PLUGIN_DESC.n_hooks = vendor_load(&CR_PLUGIN_DESC);
}
