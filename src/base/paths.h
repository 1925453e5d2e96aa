// SPDX-License-Identifier: MIT
/*
 * Paths of directories and files. The environment can replace each directory (docs/environment.md), so that several
 * instances can run independently:
 *
 *	                     what                root's                     a user's
 *	BRUMATE_RUNTIME_DIR  sockets, locks      /run/brumate               /run/brumate/users/UID or /tmp/brumate-UID
 *	BRUMATE_STATE_DIR    jobs                /var/lib/brumate           STATE/on-HOST
 *	                     checkpoints         /var/lib/brumate/...       STATE/checkpoints
 *	BRUMATE_LOG_DIR      logs of jobs        /var/log/brumate           STATE/logs
 *	BRUMATE_CONFIG       configuration       /etc/brumate/brumate.conf  the same, then CONFIG/brumate.conf
 *	BRUMATE_LIBEXEC_DIR  helper programs     (compiled in; the build directory when run from it)
 *
 * STATE is $XDG_STATE_HOME/brumate or ~/.local/state/brumate, CONFIG is $XDG_CONFIG_HOME/brumate or
 * ~/.config/brumate. Several machines may share a user's home: they also share its checkpoints, but a job belongs
 * to the machine that it runs on. A job outlives the login that started it, and $XDG_RUNTIME_DIR does not, so our
 * sockets are not there.
 *
 * Returned strings live as long as the process.
 */
#pragma once

#include <stdbool.h>
#include <string.h>
#include <sys/types.h>

#include "base/error.h"

/** The file in the directory of the images of a container engine's CRIU that records the container's GPU state. */
#define PATH_CONTAINER_RECORD "brumate-gpus.json"

/**
 * Checks that the directories in the environment have absolute paths: relative ones would mean different places to
 * our programs. -EINVAL names the first that is relative.
 */
int path_check_given(struct brumate_error *err);

/** Where the sockets of user @uid lie (owned; NULL without memory): in @for_all, which root has made for all users; in @tmp
 * where there is no such directory, or where the user's have been there before. What another user has put there under
 * that name is left alone, and ".1" and so on taken. */
char *path_choose_runtime_dir(const char *for_all, const char *tmp, uid_t uid);

const char *path_runtime_dir(void);
const char *path_state_dir(void);
const char *path_log_dir(void);

/** Where checkpoints are stored, unless the configuration says otherwise. Owned; NULL if out of memory. */
char *path_checkpoints_dir(void);

/** The configuration files in the order in which they are read. The second is NULL if there is only one. */
const char *path_config(void);
const char *path_config_of_user(void);

/**
 * Creates the runtime directory if it is missing. A user's is in a directory that is writable by everyone, so one
 * that does not belong to the user alone is refused. Errors to act on: -EPERM.
 */
int path_make_runtime_dir(struct brumate_error *err);

/**
 * Full path of one of our programs or data files ("brumate-shim"): in BRUMATE_LIBEXEC_DIR, in the directory of the
 * running program or the one above it (as in a build directory), then in libexec. Returns owned, NULL if absent.
 */
char *path_find_helper(const char *name);

/** asprintf(3) that returns the string (owned), or NULL if out of memory. */
char *path_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/** Whether the @len bytes of @path begin with one of @prefixes, which have ':' between them. NULL: there is none. */
static inline bool path_begins_with_one(const char *path, size_t len, const char *prefixes)
{
	for (const char *p = prefixes; p && *p;) {
		size_t n = strcspn(p, ":");

		if (n && n <= len && !memcmp(path, p, n))
			return true;
		p += n + (p[n] == ':');
	}
	return false;
}
