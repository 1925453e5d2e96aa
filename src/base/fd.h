// SPDX-License-Identifier: MIT
/*
 * File descriptors and small files: full reads and writes, atomic replacement, removal of trees; and descriptors put by:
 * where a process or the machine has no others left, what has to be opened to look at a job or to put it right gets one
 * of these. There is one stock for each process, as there is one table of descriptors.
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

/** As fd_read_full(), from @offset on: the file's own position stays what it is. */
ssize_t fd_read_at(int fd, void *buf, size_t len_bytes, uint64_t offset);

/** Writes all of @buf. Returns 0 or -errno. */
int fd_write_full(int fd, const void *buf, size_t len_bytes);

/** As fd_write_full(), from @offset on: the file's own position stays what it is. */
int fd_write_at(int fd, const void *buf, size_t len_bytes, uint64_t offset);

/** Waits until @fd is ready for @events (poll(2)'s) or hung up. Returns 0, -ETIMEDOUT or -errno. */
int fd_wait(int fd, short events, uint64_t deadline_ns);

/** Who made the other end of a connected Unix socket: who listened, or connected, or made the pair
 * (unix(7), SO_PEERCRED; the pid is in our numbering, 0 if it has none there). Returns 0 or -errno. */
int fd_peer(int fd, struct ucred *ret);

/** Closes all descriptors but @a and @b, which may be one and the same, in a child that was just forked. */
void fd_close_others(int a, int b);

/**
 * Reads a whole small file into a NUL-terminated heap buffer (returns owned in @ret_text).
 * Refuses more than @max_bytes with -EFBIG. @ret_len_bytes may be NULL.
 */
int file_read(int dir_fd, const char *path, size_t max_bytes, char **ret_text,
	      size_t *ret_len_bytes);

/** The same of a plain file @name that lies beneath @dir_fd, where somebody else may have put anything: a link, a pipe or a
 * device is -EBADMSG, and is not opened. */
int file_read_plain(int dir_fd, const char *name, size_t max_bytes, char **ret_text,
		    size_t *ret_len_bytes);

/**
 * Replaces @path by @text so that a crash leaves the old or the new content: written under another
 * name beside it with @mode, synced, renamed, directory synced. Returns 0 or -errno.
 */
int file_replace(int dir_fd, const char *path, const void *text, size_t len_bytes, mode_t mode);

/** As file_replace() without syncing: for records that only matter while their processes live, which
 * a machine that goes down takes with it. */
int file_swap(int dir_fd, const char *path, const void *text, size_t len_bytes, mode_t mode);

/** Removes from the directory @path what these two left there whose process was killed in the middle. What a living
 * process writes stays, and so does what cannot be looked at. */
void file_sweep(const char *path);

/** opendir(3) of @path beneath @dir_fd; where descriptors have run out, with one of the reserve. Returns
 * NULL and errno where it fails. */
DIR *dir_open(int dir_fd, const char *path);

/** The next entry that is neither "." nor "..". Returns 1, 0 where there are no more, or -errno: what was seen so far
 * may not be all. */
int dir_next(DIR *dir, struct dirent **ret);

/** Creates @path and its missing parents with @mode. Existing directories are left as they are. */
int mkdir_parents(const char *path, mode_t mode);

/** mkdir_parents() that syncs the directory above each one it creates. */
int mkdir_parents_synced(const char *path, mode_t mode);

/** Removes @name beneath @dir_fd and all below it; never follows a link. Missing is success. -ENAMETOOLONG: it is deeper
 * than anything of ours, and each level takes a descriptor and a frame: somebody else made it. */
int remove_tree(int dir_fd, const char *name);

/** Whether the disk that @fd is on has @bytes free for us. What need not be written leaves that much to what must. */
bool fd_disk_has(int fd, uint64_t bytes);

/** fsync(2) of the directory @path (opened for it). */
int sync_dir(int dir_fd, const char *path);

/** How many descriptors are put by. */
enum { RESERVE_FDS = 32 };

/**
 * Takes what the stock lacks, as far as descriptors are left. A program that needs the stock fills it when it
 * starts, and again whenever something may have been closed; in others it is empty.
 */
void reserve_fill(void);

/** How many the stock has. */
int reserve_count(void);

/** After a call that failed with @error (an errno): gives up one of the stock where that can help. Returns whether
 * the call is worth another try. */
bool reserve_lend(int error);

/** Makes a call that returns a negative number and errno where it fails; where descriptors have run out, with the
 * help of the stock. */
#define RESERVE_TRY(call)                                \
	({                                               \
		__typeof__(call) got_;                   \
		do                                       \
			got_ = (call);                   \
		while (got_ < 0 && reserve_lend(errno)); \
		got_;                                    \
	})
