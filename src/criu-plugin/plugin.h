// SPDX-License-Identifier: MIT
/*
 * The parts of brumate's CRIU plugin: the interface between CRIU and plugins, devices that are reopened, page maps
 * without hidden ranges, and the replacement of CRIU's imports by which they are answered.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/socket.h>

#include "criu-plugin/hidden.h"

/*
 * ---- CRIU ----
 *
 * Interface 0.2, which every CRIU since 3.x loads. It is declared here by its facts (names, numbers, layout), so
 * that nothing of CRIU is needed to build.
 */

enum criu_hook {
	CRIU_HOOK_DUMP_EXT_FILE = 2, /* int (int fd, int id) */
	CRIU_HOOK_RESTORE_EXT_FILE =
		3, /* int (int id, bool *flag), if there is one: criu_no_retry() */
	CRIU_HOOK_HANDLE_DEVICE_VMA = 7, /* int (int fd, const struct stat *), the file mapped */
	/* int (const char *path, const uint64_t address, const uint64_t old_offset, uint64_t *new_offset,
	 * int *fd); 1: map that instead */
	CRIU_HOOK_UPDATE_VMA_MAP = 8,
	CRIU_HOOK_RESUME_DEVICES_LATE =
		9, /* int (int pid), restored and stopped; what it returns does not count */
	CRIU_HOOK_PAUSE_DEVICES =
		10, /* int (int pid), the root first, which runs then with all others */
	CRIU_HOOK_CHECKPOINT_DEVICES = 11, /* int (int pid), all being stopped */
	CRIU_HOOKS = 12,
	CRIU_HOOKS_WITH_RETRY = 14, /* or more: see criu_no_retry() */
	CRIU_HOOK_DUMP_DEVICES_LATE =
		14, /* int (int pid), since CRIU 4.3: memory and files are dumped */
	CRIU_HOOKS_MOST = 15,
	CRIU_HOOKS_ROOM = 32, /* for those of later ones, which a vendor's plugin has */
};

enum criu_stage { CRIU_STAGE_DUMP, CRIU_STAGE_PRE_DUMP, CRIU_STAGE_RESTORE };

enum { CRIU_PLUGIN_ABI = 0 << 16 | 2 << 8 };

/** CRIU looks it up under the name CR_PLUGIN_DESC. A hook returns -ENOTSUP for what is not its own. */
struct cr_plugin {
	const char *name;
	int (*init)(int stage);
	void (*exit)(int stage, int result);
	unsigned version, n_hooks;
	void *hooks[CRIU_HOOKS_ROOM];
};

enum criu_log_level { CRIU_LOG_ERROR = 1, CRIU_LOG_WARNING = 2, CRIU_LOG_INFO = 3 };

/* Exported by CRIU; absent where the plugin's code is tested alone. */
extern void print_on_level(unsigned level, const char *format, ...)
	__attribute__((weak, format(printf, 2, 3)));
/** Names a plugin without which CRIU refuses to restore the image being dumped. */
extern int add_inventory_plugin(const char *name) __attribute__((weak));
/** True if the image names it. CRIU treats a plugin that does not call this as absent. */
extern bool check_and_remove_inventory_plugin(const char *name, size_t len) __attribute__((weak));
/** Makes CRIU stop threads one by one instead of with the freezer of their cgroup, which it thaws first if it is
 * frozen. */
extern void set_compel_interrupt_only_mode(void) __attribute__((weak));
/** A copy of what CRIU was given for the file of that name; -1: nothing. */
extern int inherit_fd_lookup_id(char *id) __attribute__((weak));
/** fd (borrowed) of the directory with the images. */
extern int criu_get_image_dir(void) __attribute__((weak));

/* ---- which CRIU this is in ---- */

/**
 * The number of kinds of hooks in this CRIU, which the version of its interface does not tell: 12 in 4.0 and 4.1, 13
 * in 4.2, more after it. 0: unknown.
 */
unsigned criu_hook_kinds(void);

/**
 * Sets the flag by which CRIU does not ask for a descriptor again, if this CRIU has it. @flag is the second argument
 * of CRIU_HOOK_RESTORE_EXT_FILE. CRIU 4.3 passes a flag there, initially unset. CRIU up to 4.2.1 passes nothing: the
 * register then has a leftover of an earlier call, the buffer of its log or, if it logs less, a string that is
 * read-only. The flag came with fb02dbf68 after 4.2, the 14th kind of hook three commits later; there is no release
 * in between. Returns 0; -ELIBBAD: it is unknown whether there is a flag. Then nothing is written, and the hook has
 * to fail: a flag that happens to be set would make CRIU drop the fd and ask again.
 */
int criu_no_retry(bool *flag);

/** The text for an error, also for -ELIBBAD; static. */
const char *criu_strerror(int error);

/* ---- devices that are named by the environment ---- */

/** Records the device behind @fd under the number that CRIU gives it. Returns 0, -ENOTSUP (not one of those
 * named), -ELIBBAD (this CRIU's device_restore_fd() would fail so), -errno. */
int device_dump_fd(int fd, int id);

/** Opens it in the task being restored. @flag: passed to criu_no_retry(), only for a device of ours. Returns the fd,
 * -ENOTSUP, -ELIBBAD, -errno. */
int device_restore_fd(int id, bool *flag);

/** Whether CRIU may leave the mapping of the file behind @fd to us: 0, -ENOTSUP (not a device that is named),
 * -errno. */
int device_dump_map(int fd);

/**
 * The replacement of the mapping of @path in the task being restored, from its beginning: 1 and the fd, 0 (not one of
 * the named devices), -errno. The fd is a new one each time, to be closed by its recipient.
 */
int device_restore_map(const char *path, int *ret_fd);

enum { DEVICE_PATH_BYTES = 256 };

/** A record: what is opened, and how. */
struct device_record {
	char path[DEVICE_PATH_BYTES];
	int flags;
};

/** Reads a record. Pure, for foreign bytes. Returns 0, -EBADMSG. */
int device_decode(struct device_record *ret, const char *text, size_t len_bytes);

/*
 * ---- the plugin of the vendor that HIDDEN_VENDOR_VARIABLE names ----
 *
 * Without one all of these do nothing, and the answers are -ENOTSUP. Those of hooks are what the plugin's own return.
 */

/** Loads it, and puts its hooks into @ours where we have none. Returns the number of hooks that there are then. */
unsigned vendor_load(struct cr_plugin *ours);

/**
 * In the CRIU of an engine, whose environment names no vendor, it is loaded once the processes, or their images, name one. CRIU
 * lists the hooks of a plugin once, after its init: before that there has to be room for those of the vendor's.
 * vendor_room(): how many hooks @ours is to have for that, as many as before where no plugin of a vendor is installed.
 * vendor_keep_room(): puts hooks that leave all to others where there are none.
 */
unsigned vendor_room(const struct cr_plugin *ours);
void vendor_keep_room(struct cr_plugin *ours);

/** Loads that of the vendor in @text ("ID" or "ID FROM=TO,..."), and starts it. As vendor_init(). */
int vendor_use(struct cr_plugin *ours, const char *text, int stage, const char **ret_why);

/** 0, -ELIBACC: it is not loaded, for the reason @ret_why; what its own returns. */
int vendor_init(int stage, const char **ret_why);

/** Resumes all processes on their GPUs, too, whose files were dumped. */
void vendor_end(int stage, int result);

/** -EIO: it says that it saved the file, and did not. */
int vendor_dump_file(int fd, int id);
/** -EIO: it says that it restored the file, and did not. */
int vendor_restore_file(int id, bool *flag);
int vendor_handle_map(int fd, const struct stat *st);
int vendor_update_map(const char *path, uint64_t address, uint64_t old_offset, uint64_t *new_offset,
		      int *fd);
/** -EIO: some of its work in this process failed, although it reports none. */
int vendor_resume(int pid);
/** The same, of its work at the end of a dump, which it has since CRIU 4.3. */
int vendor_dump_late(int pid);

/* ---- system calls of restored threads ---- */

/** Has the threads of process @pid, which CRIU has stopped, make what calls of @t are theirs. Returns 0 or more; -errno of
 * the last that failed. */
int64_t calls_make(const struct hidden_table *t, pid_t pid);

/** Has the threads of process @pid, which we trace and which stand still, ask the kernel what it tells only themselves. Returns whether
 * it is under MDWE. */
bool tellings_read(struct thread_tellings *t, pid_t pid);

/* ---- functions that the main program takes from its libraries ---- */

/**
 * Makes the main program call @replacement wherever it calls the imported function @name. Returns what
 * it called so far, or NULL where it imports no such function (a static program).
 */
void *import_replace(const char *name, void *replacement);
/** The same of the library that has something at @inside. */
void *import_replace_in(const void *inside, const char *name, void *replacement);

/*
 * ---- page maps ----
 *
 * A process's page map, as the kernel shows it to CRIU, without the ranges of a hidden_table. CRIU takes what is
 * not in it for memory that was never touched.
 */

/** One run of pages that ioctl(PAGEMAP_SCAN) found. Facts of the kernel, linux/fs.h of 6.7. */
struct pagemap_region {
	uint64_t start, end, categories;
};

/** The argument of ioctl(PAGEMAP_SCAN). */
struct pagemap_scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define PAGEMAP_SCAN_REQUEST _IOWR('f', 16, struct pagemap_scan)

typedef int (*pagemap_scan_fn)(int fd, struct pagemap_scan *scan);

/**
 * Returns what ioctl(PAGEMAP_SCAN) on @fd would if the hidden ranges of @pid were absent: scans the rest by @real,
 * piece by piece. Returns the number of regions, or -1 with errno.
 */
int pagemap_scan_hidden(const struct hidden_table *t, int64_t pid, int fd,
			struct pagemap_scan *scan, pagemap_scan_fn real);

/** Clears the entries of hidden pages in @entries, which were read at @offset of the page map. */
void pagemap_clear_hidden(const struct hidden_table *t, int64_t pid, uint64_t *entries,
			  size_t len_bytes, off_t offset, size_t page_bytes);

/*
 * ---- what is hidden ----
 *
 * CRIU's own calls by which it asks for a page map are answered without the ranges of one table, from hide_begin() to
 * hide_end(). One at a time.
 */

/** Called before each answer: 1: use the table; 0: do not; -errno: CRIU's call fails with it. */
typedef int (*hide_fn)(void);

/** Maps the table behind @fd; NULL: there is none. */
struct hidden_table *hidden_table_map(int fd);

/** @t: borrowed. Returns false if CRIU's calls cannot be intercepted. */
bool hide_begin(const struct hidden_table *t, hide_fn may);
void hide_end(void);

/*
 * ---- semaphores ----
 *
 * Eventfds that are semaphores CRIU restores as plain ones. In the images of our dumps they have O_DIRECT among their flags
 * (criu/mend.h), which the kernel takes of no eventfd: a CRIU without this cannot restore them. CRIU's own calls of fcntl(2) are
 * answered, from semaphores_begin() to semaphores_end(): where it sets that flag, a semaphore takes the place of the eventfd, under
 * the same number and with the same count. One at a time.
 */

/** Returns false where CRIU's calls cannot be seen: then it fails to restore a semaphore. */
bool semaphores_begin(void);
void semaphores_end(void);

/*
 * ---- the end of CRIU in the middle of a restore ----
 *
 * Threads whose tracer has ended run on, and nothing that is restored may run before all of it is restored. So each thread that CRIU
 * traces for a restore ends with it, until CRIU detaches: from ties_begin() to ties_end(). One at a time.
 */

/** Returns false where CRIU's calls cannot be seen: then what it restored runs for a moment where it is killed. */
bool ties_begin(void);
void ties_end(void);

/*
 * ---- sockets that go on listening ----
 *
 * A restored job whose ports were held meanwhile gets the sockets that hold them, with the connections that wait there: CRIU's
 * own calls of bind(2) are answered, from listeners_begin() to listeners_end(). Where CRIU was given a socket by the name of the
 * address, that takes the place of the one that would be bound, under the same number.
 */

/** Returns false where CRIU's calls cannot be seen: then a port that is held cannot be had. */
bool listeners_begin(void);
void listeners_end(void);

/** How CRIU is given the socket at @address; false: it is none of the internet. Pure. */
bool listener_key(char ret[static HIDDEN_LISTENER_KEY_BYTES], const struct sockaddr *address);

/** Makes the eventfd @fd a semaphore. 0, -errno. */
int semaphore_replace(int fd);

/**
 * Records the filters of all threads of process @pid, which we trace and which are stopped. What cannot be read, or
 * finds no room, is reported in @t->error.
 */
void filters_read(struct filter_table *t, pid_t pid);

/** The process whose page map @path names ("/proc/12/pagemap", "/12/pagemap"); 0: it names none. Pure. */
int64_t pagemap_pid(const char *path);
