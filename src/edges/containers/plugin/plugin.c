// SPDX-License-Identifier: MIT
/*
 * brumate's plugin for the CRIU of a container engine. The engine's CRIU calls it for each process of a container
 * separately, after it has stopped the process's parents. So all GPU state is saved in the first call, while all
 * processes run, and later calls only check. brumate-container does the work (helper.h). At a restore the driver's
 * threads in the processes run until they are done. CRIU would ignore a failure there, so the plugin then kills the
 * processes, which CRIU notices.
 */
#include "criu-plugin/plugin.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/paths.h"
#include "criu-plugin/calls.h"
#include "edges/containers/plugin/helper.h"
#include "criu-plugin/registers.h"
#include "edges/containers/plugin/threads.h"
#include "gpu/saved-devices.h"

/*
 * The plugin name in an image. With GPU state: the name, a colon and the seal of the data about GPU state next to
 * CRIU's images, so that neither can be used without the other; the name alone is in older images, which have no
 * seal.
 */
#define PLUGIN_NAME  "brumate-container"
#define DEVICES_NAME PLUGIN_NAME "-devices" /* no GPU state, but devices to be reopened */
#define TREE_NAME    "pstree.img"
#define STREAM_NAME  "streamer-capture.sock"
#define PARENT_NAME  "parent"

/* Of a vendor's plugin, which logs what it fails at. */
#define VENDOR_SAYS "the plugin of the GPU's vendor says why"

enum { TIDS_MAX = 1024, PATIENCE_MS = 250 };

static struct {
	int stage;
	struct helper helper;
	bool is_named;	   /* in the image */
	bool has_saved;	   /* GPU state may be in host memory */
	bool is_finished;  /* all of it is in the directory of images */
	bool sees_the_end; /* of a dump's memory; see our_openat() */
	int table_fd;	   /* of what is hidden from CRIU; -1: nothing can be */
	struct hidden_table *table;
	bool all_stopped; /* of a dump's processes */
	bool has_taken;	  /* the helper was asked which memory it takes */
	bool is_restored; /* it has been brought back, or there is none */
	bool has_failed;  /* a restore: all processes have to end */
	pid_t root;	  /* the first process asked about */
} state = { .stage = -1, .helper = HELPER_NONE, .table_fd = -1 };

#define say(level, ...)                                                 \
	do {                                                            \
		if (print_on_level)                                     \
			print_on_level(level, "brumate: " __VA_ARGS__); \
	} while (0)

/* ---- what the image says, and what brumate-container is asked ---- */

/* Returns a code that CRIU takes for a failure, and not for "not mine". */
static int fail(const char *what, const char *why)
{
	say(CRIU_LOG_ERROR, "%s: %s\n", what, why);
	return -EIO;
}

static int name_in_image(const char *name)
{
	if (!state.is_named)
		state.is_named = add_inventory_plugin && add_inventory_plugin(name) == 0;
	return state.is_named ? 0 : fail("the image", "cannot be made to ask for this plugin");
}

/* Whether the image names a plugin with this prefix or, if @len includes the NUL, with this name. */
static bool image_names(const char *name, size_t len)
{
	return check_and_remove_inventory_plugin && check_and_remove_inventory_plugin(name, len);
}

/* CRIU's deadline is for its own work, a second or two; device memory may take any time. */
static int ask(const char *word, pid_t pid, char answer[static HELPER_ANSWER_BYTES])
{
	unsigned left = alarm(0);
	int r = helper_ask(&state.helper, word, pid, answer);

	if (left)
		alarm(left);
	return r;
}

static int start_helper(void)
{
	int r = criu_get_image_dir
			? helper_start(&state.helper, criu_get_image_dir(), state.table_fd)
			: -ENOSYS;

	return r < 0 ? fail("brumate-container", strerror(-r)) : 0;
}

/* ---- dump ---- */

__attribute__((visibility("default"))) extern struct cr_plugin CR_PLUGIN_DESC;

/* @text: whose plugin, and which GPU is to take the place of which. */
static int use_vendor(const char *text)
{
	const char *why = "";
	int r = vendor_use(&CR_PLUGIN_DESC, text, state.stage, &why);

	return r < 0 ? fail("the plugin of the GPU's vendor", *why ? why : "it does not start") : 0;
}

static int save_all(pid_t root)
{
	char answer[HELPER_ANSWER_BYTES];
	int r = start_helper();

	if (r < 0)
		return r;
	state.root = root;
	state.has_saved = true; /* until it is known better */
	if (ask("save", root, answer) < 0)
		return fail("GPU state was not saved", answer);
	const size_t len = strcspn(answer, " ");
	state.has_saved = !strncmp(answer, "gpu", len) && len;
	return answer[len] ? use_vendor(answer + len + 1) : 0;
}

static int pause_devices(int pid)
{
	if (state.stage != CRIU_STAGE_DUMP)
		return -ENOTSUP;
	return state.root ? 0 : save_all(pid);
}

/* Device memory is written to the directory of images at the same time as CRIU's images if CRIU has a hook at their
 * end. */
static bool tells_late(void)
{
	return criu_hook_kinds() > CRIU_HOOK_DUMP_DEVICES_LATE;
}

static int finish(void)
{
	char answer[HELPER_ANSWER_BYTES], name[sizeof(PLUGIN_NAME) + HELPER_ANSWER_BYTES];

	if (!state.has_saved || state.is_finished)
		return 0;
	if (ask("finish", state.root, answer) < 0)
		return fail("GPU state was not saved", answer);
	state.is_finished = true;
	snprintf(name, sizeof(name), PLUGIN_NAME ":%s", answer);
	return name_in_image(name);
}

/* What CRIU does not save of the registers of threads. */
static int check_registers(int pid)
{
	struct registers_kept kept;
	int r = registers_settle(pid, REGISTERS_SAVED, &kept);

	if (r > 0)
		return fail("a thread does not let go of registers that CRIU does not save (AMX)",
			    "try again");
	if (r == 0)
		r = registers_dump_permission(criu_get_image_dir(), pid);
	if (r < 0)
		return fail("registers that CRIU does not save (AMX)", strerror(-r));
	return r > 0 && !state.has_saved ? name_in_image(DEVICES_NAME) : 0;
}

static int checkpoint_devices(int pid)
{
	char answer[HELPER_ANSWER_BYTES];

	if (state.stage != CRIU_STAGE_DUMP)
		return -ENOTSUP;
	if (ask("check", pid, answer) < 0)
		return fail("GPU state is not complete", answer);
	if (check_registers(pid) < 0)
		return -EIO;
	calls_restart(pid);
	state.all_stopped = true;
	return tells_late() || state.sees_the_end ? 0 : finish();
}

/*
 * A CRIU without a hook at the end still writes the list of processes after their memory. The plugin replaces openat()
 * in CRIU, and when CRIU opens that list it waits until device memory has been written to the directory of images. An
 * open that fails makes CRIU fail.
 */
static const char *const openat_names[] = { "openat64", "openat" };
static int (*real_openat)(int dir_fd, const char *path, int flags, ...);

static int our_openat(int dir_fd, const char *path, int flags, ...)
{
	va_list list;

	va_start(list, flags);
	mode_t mode = va_arg(list, mode_t);
	va_end(list);
	if ((flags & O_CREAT) && !strcmp(path, TREE_NAME) && finish() < 0) {
		errno = EIO;
		return -1;
	}
	return real_openat(dir_fd, path, flags, mode);
}

/* Images that are sent to a socket are not opened. */
static void look_for_the_end(void)
{
	if (!criu_get_image_dir || faccessat(criu_get_image_dir(), STREAM_NAME, F_OK, 0) == 0)
		return;
	for (size_t i = 0; i < 2 && !real_openat; i++)
		real_openat = import_replace(openat_names[i], (void *)our_openat);
	state.sees_the_end = real_openat != NULL;
}

/* CRIU goes on without the plugin. */
static void stop_looking(void)
{
	for (size_t i = 0; i < 2 && real_openat; i++)
		import_replace(openat_names[i], (void *)real_openat);
}

/*
 * The helper also saves CPU memory if there is GPU state, so that the image needs this plugin. CRIU examines the
 * first page of any process only after all of them are stopped.
 */
static int may_hide(void)
{
	char answer[HELPER_ANSWER_BYTES];

	if (!state.has_saved || state.is_finished || !state.all_stopped)
		return 0;
	if (!state.has_taken) {
		state.has_taken = true;
		if (ask("memory", state.root, answer) < 0)
			return fail("memory was not saved", answer);
	}
	return atomic_load_explicit(&state.table->n, memory_order_acquire) > 0;
}

/* If any of this fails, CRIU saves that memory itself. It also does if it makes an incremental image, and if it
 * reports no end. */
static void prepare_to_hide(void)
{
	if ((!tells_late() && !state.sees_the_end) || !criu_get_image_dir ||
	    faccessat(criu_get_image_dir(), PARENT_NAME, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return;
	state.table_fd = hidden_table_new();
	state.table = state.table_fd < 0 ? NULL : hidden_table_map(state.table_fd);
	if (!state.table || hide_begin(state.table, may_hide))
		return;
	hide_end();
	say(CRIU_LOG_WARNING, "this CRIU's page scan cannot be seen: CPU memory is its own\n");
}

static int dump_devices_late(int pid)
{
	if (state.stage != CRIU_STAGE_DUMP)
		return -ENOTSUP;
	int r = vendor_dump_late(pid);
	return r < 0 && r != -ENOTSUP ? fail("GPU state was not saved", VENDOR_SAYS) : finish();
}

/* A container that continues gets its GPUs back, for which CRIU must have released it. The helper knows what to do;
 * if it has died, a new one does it. */
static void end_dump(int result)
{
	char answer[HELPER_ANSWER_BYTES];

	if (result == 0 && state.has_saved && !state.is_finished) {
		fail("GPU state was not saved", "this CRIU has not asked for it");
		abort(); /* nothing else makes it fail here; the container goes on */
	}
	if (state.has_saved && helper_is_gone(&state.helper)) {
		say(CRIU_LOG_WARNING, "brumate-container has died, starting another\n");
		helper_hang_up(&state.helper);
		if (start_helper() == 0 && ask("adopt", state.root, answer) < 0)
			fail("the container may have to do without its GPUs", answer);
	}
	helper_hang_up(&state.helper);
}

/* ---- restore ---- */

static size_t parse_tids(struct runner *ret, const char *text)
{
	size_t n = 0;
	char *end;

	for (long tid; n < TIDS_MAX && (tid = strtol(text, &end, 10)) > 0; text = end) {
		bool is_agent = *end == 'a';

		end += is_agent;
		ret[n++] = (struct runner){ .tid = (pid_t)tid, .is_agent = is_agent };
	}
	return n;
}

/* Waits for the answer. The work may need a lock that a stopped thread holds. */
static int wait_for_gpus(const struct runner *threads, size_t n,
			 char answer[static HELPER_ANSWER_BYTES])
{
	struct bystanders *others = NULL;
	int r = 0;

	while (r == 0 && !helper_has_answered(&state.helper, PATIENCE_MS)) {
		if (!others && !(others = bystanders_find(threads, n)))
			r = -ENOMEM;
		if (r == 0)
			r = bystanders_step(others);
	}
	bystanders_free(others);
	if (r < 0)
		return fail("a thread cannot be stopped again", strerror(-r));
	r = helper_answer(&state.helper, answer);
	return r < 0 ? fail("GPU state was not restored", answer) : 0;
}

static int restore_gpus(const struct runner *threads, size_t n)
{
	char answer[HELPER_ANSWER_BYTES];
	unsigned left = alarm(0);

	helper_request(&state.helper, "restore", state.root);
	int r = wait_for_gpus(threads, n, answer);
	if (left)
		alarm(left);
	return r;
}

static int restore_running(struct runner *threads, size_t n)
{
	size_t running = 0;
	int r = 0;

	while (running < n && r == 0)
		if ((r = thread_let_run(&threads[running])) == 0)
			running++;
	r = r < 0 ? fail("the driver's thread cannot run", strerror(-r)) : restore_gpus(threads, n);
	for (size_t i = 0; i < running; i++) {
		int one = thread_stop_again(&threads[i]);

		if (one < 0 && r == 0)
			r = fail("the driver's thread cannot be stopped", strerror(-one));
	}
	return r;
}

/* CRIU checks for ended children whenever it gets SIGCHLD. */
static int restore_all(pid_t root)
{
	static struct runner threads[TIDS_MAX];
	char answer[HELPER_ANSWER_BYTES];
	sigset_t child, before;
	int r;

	state.root = root;
	/* If CRIU is killed from here on, half a container would run and write to its files. */
	if ((r = thread_bind(root)) < 0)
		return fail("the container cannot be bound to CRIU", strerror(-r));
	if (ask("load", root, answer) < 0)
		return fail("GPU state cannot be restored", answer);
	size_t n = parse_tids(threads, answer);
	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	r = restore_running(threads, n);
	sigprocmask(SIG_SETMASK, &before, NULL);
	return r;
}

/* Whether a thread of @pid is left, other than the leader of the root, for whose end CRIU itself waits. */
static bool has_thread(pid_t pid)
{
	char path[64];
	const struct dirent *entry;
	bool found = false;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	auto_closedir DIR *dir = opendir(path);
	while (dir && !found && (entry = readdir(dir))) {
		pid_t tid = (pid_t)strtol(entry->d_name, NULL, 10);

		found = tid > 0 && (tid != pid || pid != state.root);
	}
	return found;
}

/* Kills a process that CRIU holds, and reaps its threads in any order: the last thread of an init does not end before
 * all processes of its pid namespace have been reaped. */
static void end_process(pid_t pid)
{
	sigset_t child, before;

	sigemptyset(&child);
	sigaddset(&child, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child, &before);
	kill(pid, SIGKILL);
	while (has_thread(pid) && (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR))
		;
	sigprocmask(SIG_SETMASK, &before, NULL);
}

static int resume_devices_late(int pid)
{
	if (state.stage != CRIU_STAGE_RESTORE)
		return -ENOTSUP;
	int r = registers_restore_permission(criu_get_image_dir(), pid);
	if (r < 0) {
		end_process(pid);
		return fail("registers that a process uses (AMX)", strerror(-r));
	}
	if (!state.is_named)
		return -ENOTSUP;
	if (!state.is_restored) {
		state.has_failed = restore_all(pid) < 0;
		state.is_restored = true;
	}
	if (!state.has_failed) {
		r = vendor_resume(pid);
		if (r >= 0 || r == -ENOTSUP)
			return 0;
		fail("a process does not go on with its GPU", VENDOR_SAYS);
		state.has_failed = true;
	}
	end_process(pid);
	return -EIO;
}

/* ---- what forks leave of devices ---- */

static int dump_ext_file(int fd, int id)
{
	int r = device_dump_fd(fd, id);

	if (r < 0 && r != -ENOTSUP)
		return fail("a device cannot be recorded", criu_strerror(r));
	if (r == -ENOTSUP) {
		r = vendor_dump_file(fd, id);
		return r < 0 && r != -ENOTSUP ? fail("GPU state was not saved", VENDOR_SAYS) : r;
	}
	return r == 0 && !state.has_saved ? name_in_image(DEVICES_NAME) : r;
}

static int restore_ext_file(int id, bool *flag)
{
	int r = device_restore_fd(id, flag);

	if (r < 0 && r != -ENOTSUP)
		return fail("a device cannot be reopened", criu_strerror(r));
	if (r != -ENOTSUP)
		return r;
	r = vendor_restore_file(id, flag);
	return r < 0 && r != -ENOTSUP ? fail("GPU state was not restored", VENDOR_SAYS) : r;
}

/* A process whose state the driver saved maps no device any more: the rest are mappings inherited by fork. */
static int handle_device_vma(int fd, const struct stat *st)
{
	int vendor = vendor_handle_map(fd, st);

	if (vendor != -ENOTSUP)
		return vendor;
	if (!state.has_saved)
		return -ENOTSUP;
	return device_dump_map(fd);
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
	return r < 0 ? fail("zeroes cannot be put in the place of a device", strerror(-r)) : r;
}

/* ---- beginning and end ---- */

/* Whether the record of GPU state belongs to these images. Returns 1, 0 (there is no GPU state), -errno. */
static int find_state(void)
{
	char seal[HELPER_ANSWER_BYTES] = "", name[sizeof(PLUGIN_NAME) + HELPER_ANSWER_BYTES];
	const bool is_said =
		criu_get_image_dir && faccessat(criu_get_image_dir(), PATH_CONTAINER_RECORD, F_OK,
						AT_SYMLINK_NOFOLLOW) == 0;

	if (is_said && start_helper() < 0)
		return -EIO;
	if (is_said && ask("look", 0, seal) < 0) /* a leftover of an earlier image is ignored */
		return image_names(PLUGIN_NAME, strlen(PLUGIN_NAME))
			       ? fail("GPU state cannot be restored", seal)
			       : 0;
	snprintf(name, sizeof(name), PLUGIN_NAME ":%s", seal);
	if (image_names(name, strlen(name) + 1) || image_names(PLUGIN_NAME, sizeof(PLUGIN_NAME)))
		return is_said ? 1
			       : fail("GPU state cannot be restored",
				      PATH_CONTAINER_RECORD " is missing");
	if (image_names(PLUGIN_NAME ":", strlen(PLUGIN_NAME ":")))
		return fail("GPU state cannot be restored",
			    is_said ? PATH_CONTAINER_RECORD " is not of this image"
				    : PATH_CONTAINER_RECORD " is missing");
	return 0;
}

/* Errors of the image are found before there is any process, and device memory is transferred while CRIU makes the
 * processes. */
static int begin_restore(void)
{
	char answer[HELPER_ANSWER_BYTES];

	/* CRIU accepts every name if the images do not name any plugin. */
	if (image_names(PLUGIN_NAME "?", sizeof(PLUGIN_NAME "?")))
		return 0;
	image_names(DEVICES_NAME, sizeof(DEVICES_NAME));
	if (!ties_begin())
		say(CRIU_LOG_WARNING, "this CRIU's calls cannot be seen: where it is killed, what "
				      "it restored runs for a moment\n");
	int r = registers_check_permissions(criu_get_image_dir());
	if (r < 0)
		return fail("registers that the container uses (AMX)",
			    r == -EOPNOTSUPP ? "this processor has none" : strerror(-r));
	r = find_state();
	state.is_named = r > 0;
	if (r > 0)
		r = ask("open", 0, answer) < 0 ? fail("GPU state cannot be restored", answer) : 1;
	if (r > 0 && *answer && use_vendor(answer) < 0)
		r = -EIO;
	if (r <= 0)
		helper_hang_up(&state.helper);
	return r < 0 ? r : 0;
}

static int init_plugin(int stage)
{
	state.stage = stage;
	setenv(HIDDEN_DEV_VARIABLE, GPU_SAVED_DEVICES, 1);
	/* containerd pauses a container before its checkpoint, and paused processes cannot answer. */
	if (stage == CRIU_STAGE_DUMP && set_compel_interrupt_only_mode)
		set_compel_interrupt_only_mode();
	if (stage == CRIU_STAGE_DUMP && !tells_late())
		look_for_the_end();
	if (stage == CRIU_STAGE_DUMP) {
		prepare_to_hide();
		vendor_keep_room(&CR_PLUGIN_DESC);
	}
	return stage == CRIU_STAGE_RESTORE ? begin_restore() : 0;
}

/* Unless it gets a message to keep the container, the helper kills what exists of it. */
static void end_restore(int result)
{
	char answer[HELPER_ANSWER_BYTES];

	if (state.helper.fd >= 0 && result == 0 && !state.has_failed &&
	    ask("keep", state.root, answer) < 0)
		say(CRIU_LOG_WARNING, "%s\n", answer); /* it has died, so it kills nothing */
	helper_hang_up(&state.helper);
}

static void end_plugin(int stage, int result)
{
	vendor_end(stage, result);
	ties_end();
	stop_looking();
	hide_end();
	if (stage == CRIU_STAGE_DUMP)
		end_dump(result);
	else
		end_restore(result);
}

struct cr_plugin CR_PLUGIN_DESC = {
	.name = PLUGIN_NAME,
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
		[CRIU_HOOK_PAUSE_DEVICES] = (void *)pause_devices,
		[CRIU_HOOK_CHECKPOINT_DEVICES] = (void *)checkpoint_devices,
		[CRIU_HOOK_DUMP_DEVICES_LATE] = (void *)dump_devices_late,
	},
};

/* CRIU refuses a plugin with more hooks than it knows. */
__attribute__((constructor)) static void count_hooks(void)
{
	if (tells_late())
		CR_PLUGIN_DESC.n_hooks = CRIU_HOOKS_MOST;
	CR_PLUGIN_DESC.n_hooks = vendor_room(&CR_PLUGIN_DESC);
}
