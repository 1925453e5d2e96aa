// SPDX-License-Identifier: MIT
/*
 * Work on paths that others gave, done by a child: they may be on a file system in user space (FUSE) that does not
 * answer. A process that uses it waits in the kernel, perhaps for ever, and keeps open all that it has open. The child
 * has nothing of ours open. If it does not end it is left behind, and ends when the file system answers or is given up.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/** Memory of @len_bytes, of zeros, that a child's writes are seen in; NULL: there is none. Freed by aside_free(). */
void *aside_memory(size_t len_bytes);
void aside_free(void *memory, size_t len_bytes);

/**
 * Runs @fn in a child, as who the calling thread is to the file system. It makes system calls only, as we have threads, and
 * returns 0 or a positive errno. @fd: the one descriptor that it has; -1: none. Returns 0; what it returned, negative;
 * -ETIMEDOUT: it has not ended in time.
 */
int aside_run(int (*fn)(void *arg), void *arg, int fd, uint64_t timeout_ms);
