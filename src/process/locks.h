// SPDX-License-Identifier: MIT
/*
 * Locks of files: of the whole (flock(2)), of bytes by an open file or by a process (fcntl(2), F_OFD_SETLK and F_SETLK). CRIU sets
 * them again, with two flaws. It waits for ever for one that another process has by then. And a process loses all its locks of
 * bytes of a file as soon as it closes any descriptor of it, as CRIU does for each file that it maps again. So they are read
 * while the processes stand still, written down as text (docs/image-format.md, "Locks"), looked for before a restore begins,
 * and those of processes are set once more by the restored processes themselves.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "process/attributes.h"
#include "process/process.h"

enum { FILE_LOCKS_MAX = 1 << 13, FILE_LOCKS_BYTES_MAX = 64 << 20 };

/** Name of the file among CRIU's images. */
#define FILE_LOCKS_FILE "locks"

enum file_lock_kind { FILE_LOCK_OF_PROCESS, FILE_LOCK_OF_OPEN_FILE, FILE_LOCK_WHOLE };

struct file_lock {
	enum file_lock_kind kind;
	pid_t pid; /* as its own pid namespace numbers it */
	int fd;
	bool writes; /* nobody else has these bytes locked */
	uint64_t start;
	uint64_t end; /* the last byte; INT64_MAX: however long the file gets */
	char *path;   /* owned; NULL: it has none */
};

struct file_locks {
	struct file_lock *items; /* owned */
	size_t n;
};
#define FILE_LOCKS_EMPTY ((struct file_locks){ 0 })
void file_locks_fini(struct file_locks *l);
DEFINE_AUTO_FINI(struct file_locks, file_locks_fini)

/** Reads those of all processes of @tree. -E2BIG: more than FILE_LOCKS_MAX; -ENOMEM; or -errno where a process that has not ended
 * cannot be read. */
int file_locks_read(struct file_locks *ret, const struct proc_tree *tree);

/** As text (owned); NULL without memory. */
char *file_locks_encode(const struct file_locks *l, size_t *ret_len_bytes);

/** Pure, for foreign bytes. -EBADMSG, -ENOMEM. */
int file_locks_decode(struct file_locks *ret, const char *text, size_t len_bytes);

/** Looks with the rights of the calling thread whether all of them can be had, while no process has them. What cannot be
 * opened is left to others. -EBUSY, and @err names the file: another process has it locked; -ETIMEDOUT: it does not answer. */
int file_locks_can_be_had(const struct file_locks *l, struct brumate_error *err);

/** Appends the calls that set those of processes to @calls, an array of array_add(). 0, -ENOMEM. */
int file_locks_add_calls(const struct file_locks *l, struct attributes_call **calls, size_t *n);

/** Looks whether the restored processes of @tree, which stand still, have these locks. -EBUSY, and @err names the file: they
 * lack one of processes, as another process has those bytes by now. */
int file_locks_check(const struct file_locks *l, const struct proc_tree *tree,
		     struct brumate_error *err);
