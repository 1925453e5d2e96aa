// SPDX-License-Identifier: MIT
/*
 * Where things live. Every directory can be moved by the environment (docs/environment.md), so that
 * several instances live side by side:
 *
 *	                     what                root's                     a user's
 *	BRUMATE_RUNTIME_DIR  sockets, locks      /run/brumate               /tmp/brumate-UID
 *	BRUMATE_STATE_DIR    jobs                /var/lib/brumate           STATE/on-HOST
 *	                     checkpoints         /var/lib/brumate/...       STATE/checkpoints
 *	BRUMATE_LOG_DIR      logs of jobs        /var/log/brumate           STATE/logs
 *	BRUMATE_CONFIG       configuration       /etc/brumate/brumate.conf  the same, then CONFIG/brumate.conf
 *	BRUMATE_LIBEXEC_DIR  helper programs     (compiled in; the build directory when run from it)
 *
 * STATE is $XDG_STATE_HOME/brumate or ~/.local/state/brumate, CONFIG is $XDG_CONFIG_HOME/brumate or
 * ~/.config/brumate. A user's home may be that of many machines at once: checkpoints are theirs in common,
 * a job is of the machine that it runs on. A job outlives the login that started it, and $XDG_RUNTIME_DIR
 * does not, so no socket of ours lies there.
 *
 * Returned strings live as long as the process.
 */
#pragma once

#include "base/error.h"

/** The file beside the images of a container engine's CRIU that records the container's GPU state. */
#define PATH_CONTAINER_RECORD "brumate-gpus.json"

/**
 * Checks that the directories that the environment names have absolute paths: relative ones would mean another place to
 * each of our programs. -EINVAL names the first that has not.
 */
int path_check_given(struct brumate_error *err);

const char *path_runtime_dir(void);
const char *path_state_dir(void);
const char *path_log_dir(void);

/** Where checkpoints go, unless the configuration says otherwise. Owned; NULL without memory. */
char *path_checkpoints_dir(void);

/** The configuration files in the order in which they are read. The second is NULL where there is one alone. */
const char *path_config(void);
const char *path_config_of_user(void);

/**
 * Makes the runtime directory where it is not there. A user's lies where everybody may make files, so one that is
 * not theirs alone is refused. Errors to act on: -EPERM.
 */
int path_make_runtime_dir(struct brumate_error *err);

/**
 * Full path of one of our programs or data files ("brumate-shim"): in
 * BRUMATE_LIBEXEC_DIR, beside the running program or one folder above it (as in a build directory),
 * then in libexec. Returns owned, NULL if absent.
 */
char *path_find_helper(const char *name);

/** asprintf(3) that returns the string (owned), or NULL without memory. */
char *path_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
