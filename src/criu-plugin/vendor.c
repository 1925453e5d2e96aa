// SPDX-License-Identifier: MIT
/*
 * A vendor's own plugin for CRIU, as a part of ours. CRIU asks plugins in the order in which the folder lists them, and the
 * first answer counts: two in one folder answer for each other's files. So CRIU finds ours alone, which loads the other
 * one and asks it for nothing but the vendor's files. Owns the library, and a descriptor of each file that was dumped.
 */
#include "criu-plugin/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"
#include "gpu/saved-by.h"

static const struct gpu_saved_by *saved_by;
static char gpu_map[GPU_MAP_BYTES];
static const struct cr_plugin *theirs;
static char why[512]; /* it is not loaded */

static atomic_bool is_lost; /* in this process, one that CRIU builds or CRIU itself */

/* Files of processes that may be paused. */
static int *dumped;
static size_t n_dumped;

/* @folder: from that of this library. False: it is not known where that is. */
static bool find_library(char path[static PATH_MAX], const char *folder, const char *library)
{
	Dl_info us;

	if (!dladdr((void *)find_library, &us) || !strrchr(us.dli_fname, '/'))
		return false;
	int n = snprintf(path, PATH_MAX, "%.*s/%s%s",
			 (int)(strrchr(us.dli_fname, '/') - us.dli_fname), us.dli_fname, folder,
			 library);
	return n > 0 && n < PATH_MAX;
}

static const struct cr_plugin *load(const char *folder, const char *library)
{
	char path[PATH_MAX];

	if (!find_library(path, folder, library)) {
		snprintf(why, sizeof(why), "%s: its folder is not known", library);
		return NULL;
	}
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct cr_plugin *p = handle ? dlsym(handle, "CR_PLUGIN_DESC") : NULL;
	if (!p)
		snprintf(why, sizeof(why), "%s", dlerror());
	else if (p->n_hooks > criu_hook_kinds() || p->n_hooks > CRIU_HOOKS_ROOM) {
		snprintf(why, sizeof(why),
			 "%s has %u hooks, this CRIU takes %u: build it from this CRIU's sources",
			 path, p->n_hooks, criu_hook_kinds());
		p = NULL;
	}
	return p;
}

static void our_print(unsigned level, const char *format, ...)
{
	const int error = errno;
	char text[2048];
	va_list arguments;

	if (level == CRIU_LOG_ERROR && saved_by->is_loss(format))
		atomic_store(&is_lost, true);
	va_start(arguments, format);
	vsnprintf(text, sizeof(text), format, arguments);
	va_end(arguments);
	if (print_on_level)
		print_on_level(level, "%s", text);
	errno = error;
}

/* @text: "ID" or "ID FROM=TO,..." */
static const struct gpu_saved_by *find_vendor(const char *text)
{
	char id[32];

	if (!text)
		return NULL;
	const size_t len = strcspn(text, " ");
	snprintf(id, sizeof(id), "%.*s", (int)len, text);
	snprintf(gpu_map, sizeof(gpu_map), "%s", text + len + (text[len] == ' '));
	return gpu_saved_by_find(id);
}

/* False where it does not call what it is to be seen by. */
static bool watch(void)
{
	if (!import_replace_in(theirs, "print_on_level", (void *)our_print)) {
		snprintf(why, sizeof(why), "%s: what it logs cannot be seen", saved_by->library);
		return false;
	}
	for (const struct gpu_saved_call *c = saved_by->calls; c->name; c++) {
		*c->before = import_replace_in(theirs, c->name, c->ours);
		if (!*c->before) {
			snprintf(why, sizeof(why), "%s: its %s cannot be seen", saved_by->library,
				 c->name);
			return false;
		}
	}
	return true;
}

/* The answer to any hook, of any arguments: it is for another plugin. */
static int is_not_ours(void)
{
	return -ENOTSUP;
}

static void begin_with(struct cr_plugin *ours, const char *folder, const char *text)
{
	saved_by = find_vendor(text);
	theirs = saved_by ? load(folder, saved_by->library) : NULL;
	if (theirs && !watch())
		theirs = NULL;
	for (unsigned i = 0; theirs && i < theirs->n_hooks; i++)
		if (theirs->hooks[i] && (!ours->hooks[i] || ours->hooks[i] == (void *)is_not_ours))
			ours->hooks[i] = theirs->hooks[i];
}

unsigned vendor_load(struct cr_plugin *ours)
{
	begin_with(ours, "", getenv(HIDDEN_VENDOR_VARIABLE));
	return theirs && theirs->n_hooks > ours->n_hooks ? theirs->n_hooks : ours->n_hooks;
}

/* ---- in a CRIU that knows no vendor before it sees the processes ---- */

#define OUR_CRIU_FOLDER "../criu-plugin/"

static bool one_is_installed(void)
{
	char path[PATH_MAX];

	for (const struct gpu_saved_by *const *v = gpu_saved_by_all; *v; v++)
		if (find_library(path, OUR_CRIU_FOLDER, (*v)->library) && access(path, F_OK) == 0)
			return true;
	return false;
}

unsigned vendor_room(const struct cr_plugin *ours)
{
	const unsigned kinds = criu_hook_kinds();

	if (kinds <= ours->n_hooks || !one_is_installed())
		return ours->n_hooks;
	return kinds < CRIU_HOOKS_ROOM ? kinds : CRIU_HOOKS_ROOM;
}

void vendor_keep_room(struct cr_plugin *ours)
{
	const bool is_wanted = one_is_installed();

	for (unsigned i = 0; is_wanted && i < ours->n_hooks; i++)
		if (!ours->hooks[i])
			ours->hooks[i] = (void *)is_not_ours;
}

int vendor_use(struct cr_plugin *ours, const char *text, int stage, const char **ret_why)
{
	*ret_why = why;
	begin_with(ours, OUR_CRIU_FOLDER, text);
	if (!saved_by)
		snprintf(why, sizeof(why), "no plugin of the vendor \"%s\" is known here", text);
	else if (theirs && theirs->n_hooks > ours->n_hooks) {
		snprintf(why, sizeof(why), "%s was installed while CRIU began: try again",
			 saved_by->library);
		theirs = NULL;
	}
	return saved_by ? vendor_init(stage, ret_why) : -ELIBACC;
}

int vendor_init(int stage, const char **ret_why)
{
	if (!saved_by)
		return 0;
	*ret_why = why;
	if (!theirs)
		return -ELIBACC;
	saved_by->begin(stage == CRIU_STAGE_RESTORE, gpu_map);
	return theirs->init ? theirs->init(stage) : 0;
}

void vendor_end(int stage, int result)
{
	if (!theirs)
		return;
	if (theirs->exit)
		theirs->exit(stage, result);
	for (size_t i = 0; i < n_dumped; i++) {
		saved_by->go_on(dumped[i]);
		close(dumped[i]);
	}
	free(dumped);
	dumped = NULL;
	n_dumped = 0;
}

static bool is_theirs(int fd)
{
	char link[48], path[DEVICE_PATH_BYTES];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t n = theirs ? readlink(link, path, sizeof(path) - 1) : -1;
	path[n > 0 ? n : 0] = '\0';
	return n > 0 && path_begins_with_one(path, (size_t)n, saved_by->files);
}

static int keep(int fd)
{
	int *larger = reallocarray(dumped, n_dumped + 1, sizeof(*dumped));

	if (!larger)
		return -ENOMEM;
	dumped = larger;
	dumped[n_dumped] = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (dumped[n_dumped] < 0)
		return -errno;
	n_dumped++;
	return 0;
}

static bool is_saved(int id)
{
	return criu_get_image_dir && saved_by->is_saved(criu_get_image_dir(), id);
}

int vendor_dump_file(int fd, int id)
{
	int (*hook)(int, int) = theirs ? theirs->hooks[CRIU_HOOK_DUMP_EXT_FILE] : NULL;

	if (!hook || !is_theirs(fd))
		return -ENOTSUP;
	int r = keep(fd);
	if (r == 0)
		r = hook(fd, id);
	if (r == 0 && criu_get_image_dir)
		r = saved_by->write_gpus(criu_get_image_dir(), id);
	return r == 0 && (atomic_load(&is_lost) || !is_saved(id)) ? -EIO : r;
}

int vendor_restore_file(int id, bool *flag)
{
	int (*hook)(int, bool *) = theirs ? theirs->hooks[CRIU_HOOK_RESTORE_EXT_FILE] : NULL;

	if (!hook || !is_saved(id))
		return -ENOTSUP;
	int r = saved_by->read_gpus(criu_get_image_dir(), id);
	if (r < 0)
		return r;
	int fd = hook(id, flag);
	if (fd < 0 || !atomic_load(&is_lost))
		return fd;
	close(fd);
	return -EIO;
}

int vendor_handle_map(int fd, const struct stat *st)
{
	int (*hook)(int, const struct stat *) =
		theirs ? theirs->hooks[CRIU_HOOK_HANDLE_DEVICE_VMA] : NULL;

	return hook && is_theirs(fd) ? hook(fd, st) : -ENOTSUP;
}

int vendor_update_map(const char *path, uint64_t address, uint64_t old_offset, uint64_t *new_offset,
		      int *fd)
{
	int (*hook)(const char *, const uint64_t, const uint64_t, uint64_t *, int *) =
		theirs ? theirs->hooks[CRIU_HOOK_UPDATE_VMA_MAP] : NULL;

	return hook ? hook(path, address, old_offset, new_offset, fd) : -ENOTSUP;
}

int vendor_resume(int pid)
{
	int (*hook)(int) = theirs ? theirs->hooks[CRIU_HOOK_RESUME_DEVICES_LATE] : NULL;

	int r = hook ? hook(pid) : -ENOTSUP;
	return atomic_load(&is_lost) ? -EIO : r;
}

int vendor_dump_late(int pid)
{
	int (*hook)(int) = theirs && theirs->n_hooks > CRIU_HOOK_DUMP_DEVICES_LATE
				   ? theirs->hooks[CRIU_HOOK_DUMP_DEVICES_LATE]
				   : NULL;
	int r = hook ? hook(pid) : -ENOTSUP;

	return atomic_load(&is_lost) ? -EIO : r;
}
