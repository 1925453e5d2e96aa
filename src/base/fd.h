// SPDX-License-Identifier: MIT
/*
 * File descriptors and small files: full reads and writes, atomic replacement, removal of trees; and a reserve of
 * descriptors: when the process or the machine has run out of them, what has to be opened to examine or repair a job
 * gets one from the reserve. There is one reserve for each process, as there is one table of descriptors.
 */
#pragma once

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct ucred;

/** Reads until @len_bytes or end of file. Returns the bytes read, or -errno. */
ssize_t fd_read_full(int fd, void *buf, size_t len_bytes);

/** Like fd_read_full(), from @offset on; the file's own position does not change. */
ssize_t fd_read_at(int fd, void *buf, size_t len_bytes, uint64_t offset);

/** Writes all of @buf. Returns 0 or -errno. */
int fd_write_full(int fd, const void *buf, size_t len_bytes);

/** Like fd_write_full(), from @offset on; the file's own position does not change. */
int fd_write_at(int fd, const void *buf, size_t len_bytes, uint64_t offset);

/** Waits until @fd is ready for @events (poll(2)'s) or its peer has closed. Returns 0, -ETIMEDOUT or -errno. */
int fd_wait(int fd, short events, uint64_t deadline_ns);

/** flock(2), exclusively, until @deadline_ns: a process that may open a file for reading can hold its lock for ever. 0;
 * -EWOULDBLOCK: another process has it; -errno, as on a file system without locks. */
int fd_lock(int fd, uint64_t deadline_ns);

/** The process that made the other end of a connected Unix socket by listen(2), connect(2) or socketpair(2) (unix(7),
 * SO_PEERCRED; the pid is in our pid namespace, 0 if it has none there). Returns 0 or -errno. */
int fd_peer(int fd, struct ucred *ret);

/** Replaces @fd by a copy whose number is @least or more, where the numbers below are to be free. 0, -errno: it is closed. */
int fd_move_up(int *fd, int least);

/** Closes all descriptors but @a and @b, which may be the same, in a child that was just forked. */
void fd_close_others(int a, int b);

/**
 * Reads a whole small file into a NUL-terminated heap buffer (owned, in @ret_text). Refuses more than @max_bytes with
 * -EFBIG. @ret_len_bytes may be NULL.
 */
int file_read(int dir_fd, const char *path, size_t max_bytes, char **ret_text,
	      size_t *ret_len_bytes);

/** The same for a regular file @name in a directory that others may write to: a link, a pipe or a device is -EBADMSG,
 * and is not opened. */
int file_read_plain(int dir_fd, const char *name, size_t max_bytes, char **ret_text,
		    size_t *ret_len_bytes);

/**
 * Replaces @path by @text so that a crash leaves the old or the new content: written to a temporary name in the same
 * directory with @mode, synced, renamed, directory synced. Returns 0 or -errno.
 */
int file_replace(int dir_fd, const char *path, const void *text, size_t len_bytes, mode_t mode);

/** Like file_replace(), without syncing: for records that only matter while their processes live, which a crash of
 * the machine ends. */
int file_swap(int dir_fd, const char *path, const void *text, size_t len_bytes, mode_t mode);

/** Removes from the directory @path the temporary files that file_replace() and file_swap() left there if their
 * process was killed. Files of living processes stay, as do those that cannot be examined. */
void file_sweep(const char *path);

/** opendir(3) of @path beneath @dir_fd; when descriptors have run out, with one of the reserve. Returns NULL and sets
 * errno on failure. */
DIR *dir_open(int dir_fd, const char *path);

/** Renames, on any file system, to a name that is not taken: -EEXIST if it is. 0 or -errno. */
int rename_new(int from_dir_fd, const char *from, int to_dir_fd, const char *to);

/** The next entry other than "." and "..". Returns 1; 0 at the end; -errno: entries may be missing. */
int dir_next(DIR *dir, struct dirent **ret);

/** Creates @path and its missing parents with @mode. Existing directories are not changed. */
int mkdir_parents(const char *path, mode_t mode);

/** Like mkdir_parents(), and syncs the directory above each new one. */
int mkdir_parents_synced(const char *path, mode_t mode);

/** Removes @name beneath @dir_fd and everything below it; never follows a link. A missing one is a success.
 * -ENAMETOOLONG: it is deeper than anything that we make, and each level would take a descriptor and a stack frame. */
int remove_tree(int dir_fd, const char *name);

/** Whether the disk of @fd has @bytes free for us. Optional writes leave that much to necessary ones. */
bool fd_disk_has(int fd, uint64_t bytes);

/** fsync(2) of the directory @path (opened for it). */
int sync_dir(int dir_fd, const char *path);

/** The size of the reserve. */
enum { RESERVE_FDS = 32 };

/**
 * Fills up the reserve, as far as descriptors are left. A program that needs it calls this when it starts, and again
 * whenever descriptors may have been closed; in other programs it is empty.
 */
void reserve_fill(void);

/** The number of descriptors in the reserve. */
int reserve_count(void);

/** After a call that failed with @error (an errno): closes one of the reserve if that can help. Returns whether the
 * call should be repeated. */
bool reserve_lend(int error);

/** Makes a call that returns a negative number and sets errno on failure; repeats it with descriptors of the reserve
 * when they have run out. */
#define RESERVE_TRY(call)                                \
	({                                               \
		__typeof__(call) got_;                   \
		do                                       \
			got_ = (call);                   \
		while (got_ < 0 && reserve_lend(errno)); \
		got_;                                    \
	})
