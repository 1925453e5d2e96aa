// SPDX-License-Identifier: MIT
/*
 * Accessing files with the permissions of another user. Root acts for users whose paths may lead anywhere: opening,
 * creating or removing something at such a path is the user's action, so the kernel must check it for that user.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/cleanup.h"
#include "base/error.h"

/** The groups of @uid in the system's databases, in addition to @gid; @gid alone for a user without a name.
 * @ret: owned. Errors: -ENOMEM, or the database's. */
int user_groups(gid_t **ret, size_t *ret_n, uid_t uid, gid_t gid, struct brumate_error *err);

/** Becomes @uid irrevocably, in the calling thread alone, without the keys of our session: only makes system calls, for a child
 * that was just forked. 0 or -errno, and sets errno. */
int user_become(uid_t uid, gid_t gid, const gid_t *groups, size_t n_groups);

/** While entered, the calling thread accesses files as another user. */
struct user_files {
	bool entered;
	bool dumpable; /* the state to restore, from here on */
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	size_t n_groups;
};
#define USER_FILES_NONE ((struct user_files){ 0 })

/**
 * user_files_enter() - access files as @uid with @gid and the user's groups, in this thread alone
 *
 * No-op for the user we are already. The effective ids change, which also drops all effective capabilities, so
 * that later writers to a file that is opened now do not get root's permissions (for some files of /proc the kernel
 * checks those of the opener). The real and saved ids stay root's: the user can neither signal nor trace the thread.
 * Threads and children that are created while entered have the user's permissions, too.
 * Errors to act on: -EPERM if we are not root.
 */
int user_files_enter(struct user_files *ret, uid_t uid, gid_t gid, struct brumate_error *err);

/** Restores our own permissions. Aborts if that fails, as nothing may continue with the wrong ones. */
void user_files_leave(struct user_files *u);
DEFINE_AUTO_FINI(struct user_files, user_files_leave)

/** While entered, the calling thread signals processes as another user. */
struct user_signals {
	bool entered;
	bool dumpable; /* the state to restore */
};
#define USER_SIGNALS_NONE ((struct user_signals){ 0 })

/**
 * user_signals_enter() - signal processes as @uid may, in this thread alone
 *
 * For pidfd_send_signal(2), kill(2) and fcntl(2)'s F_SETOWN_EX, which stores the permissions for later: the kernel refuses
 * with EPERM to signal a process that belongs to another user by then, regardless of how its number was obtained. No-op for
 * the user we are already, for root, and if we are not root. kill(2) checks the real and the effective id: the effective
 * one is the user's, the real one is that of no account, and the saved one stays root's, so that the user can neither
 * signal nor trace the thread. Must not be used to access files. Returns 0 or -errno.
 */
int user_signals_enter(struct user_signals *ret, uid_t uid);

/** Restores our own permissions. Aborts if that fails. */
void user_signals_leave(struct user_signals *u);
DEFINE_AUTO_FINI(struct user_signals, user_signals_leave)
