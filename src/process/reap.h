// SPDX-License-Identifier: MIT
/*
 * Children of a subreaper. Orphans of the job are reaped as they come; children that some thread of
 * ours waits for by itself (CRIU, the restored root) are protected from that.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/** Holds off reap_orphans() while a child is forked and protected, so that a child that ends at once
 * is not taken from the thread that waits for it. */
void reap_lock(void);
void reap_unlock(void);

/** fork(2) of a child to be waited for by reap_wait(): its pid, -errno; 0 in the child, which calls nothing of this. */
pid_t reap_fork(void);

/** posix_spawnp(3) of such a child: nothing is its input, @out_fd its output, and @err_fd, unless it is -1, where its messages go
 * (borrowed). 0, -errno. */
int reap_spawn(pid_t *ret, const char *program, char *const argv[], char *const env[], int out_fd,
	       int err_fd);

/** From here on reap_orphans() leaves @pid alone. Call between fork and reap_unlock(). */
void reap_protect(pid_t pid);

/** Whether @pid is such a child. */
bool reap_is_protected(pid_t pid);

/** waitpid(2) for a protected child, without the protection afterwards. Returns 0 or -errno. */
int reap_wait(pid_t pid, int *ret_status);
/** The same for up to @timeout_ms: the wait status, or -errno. A child that has not ended by then is killed, and left to
 * reap_orphans(): -ETIMEDOUT. */
int reap_wait_for(pid_t pid, uint64_t timeout_ms);
/** The same without blocking: 1 reaped, 0 still running. */
int reap_poll(pid_t pid, int *ret_status);
/** Leaves a protected child to reap_orphans() after all. */
void reap_release(pid_t pid);

/* * Reaps every ended child that is not protected; @on_exit (may be NULL) is called for each. Returns 0, or -errno where not
 * all children could be looked for: they have yet to be reaped. */
int reap_orphans(void (*on_exit)(void *arg, pid_t pid, int status), void *arg);
