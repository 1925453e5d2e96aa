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
