// SPDX-License-Identifier: MIT
/*
 * Touching files with the rights of another user. Root acts for users whose paths may lead anywhere: what
 * is opened, made or removed at such a path is the user's doing, so the kernel has to decide it as for
 * that user.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

/** The groups of @uid beside @gid, as the system's databases tell; @gid alone for a user without a name.
 * @ret: owned. Errors: -ENOMEM, or the database's. */
int user_groups(gid_t **ret, size_t *ret_n, uid_t uid, gid_t gid, struct brumate_error *err);

/** Becomes @uid for good, in the calling thread alone: system calls only, for a child that was just forked. 0 or
 * -errno, which errno is, too. */
int user_become(uid_t uid, gid_t gid, const gid_t *groups, size_t n_groups);

/** While entered, the calling thread accesses files as another user. */
struct user_files {
	bool entered;
	bool dumpable; /* what to go back to, from here on */
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	size_t n_groups;
};
#define USER_FILES_NONE ((struct user_files){ 0 })

/**
 * user_files_enter() - access files as @uid with @gid and the user's groups, in this thread alone
 *
 * No-op for the user we are already. The effective ids change, and with them goes every effective capability, so
 * that a file opened now tells nothing of root to who writes to it later (the kernel keeps the opener's rights
 * with some files of /proc). The real and saved ids stay root's: the user can neither signal nor trace the thread.
 * Threads and children made meanwhile have the user's rights too.
 * Errors to act on: -EPERM where we are not root.
 */
int user_files_enter(struct user_files *ret, uid_t uid, gid_t gid, struct brumate_error *err);

/** Goes back to our own rights. It aborts where that fails, for nothing may go on with the wrong ones. */
void user_files_leave(struct user_files *u);
DEFINE_AUTO_FINI(struct user_files, user_files_leave)

/** While entered, the calling thread signals processes as another user. */
struct user_signals {
	bool entered;
	bool dumpable; /* what to go back to */
};
#define USER_SIGNALS_NONE ((struct user_signals){ 0 })

/**
 * user_signals_enter() - signal processes as @uid may, in this thread alone
 *
 * For pidfd_send_signal(2), kill(2) and fcntl(2)'s F_SETOWN_EX, which keeps the rights for later: the kernel refuses with
 * EPERM what is another user's by then, whoever named it. No-op for the user we are already, for root, and where we are not
 * root. kill(2) goes by the real and the effective id: the effective one is the user's, the real one is nobody's, and the
 * saved one stays root's, so that the user can neither signal nor trace the thread. Files are not touched meanwhile.
 * Returns 0 or -errno.
 */
int user_signals_enter(struct user_signals *ret, uid_t uid);

/** Goes back to our own rights. It aborts where that fails. */
void user_signals_leave(struct user_signals *u);
DEFINE_AUTO_FINI(struct user_signals, user_signals_leave)
