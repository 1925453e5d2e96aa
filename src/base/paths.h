// SPDX-License-Identifier: MIT
/*
 * Where things live. Every directory can be moved by the environment (docs/environment.md), so that
 * several instances live side by side:
 *
 *	BRUMATE_RUNTIME_DIR  sockets, locks          /run/brumate
 *	BRUMATE_STATE_DIR    jobs, checkpoints       /var/lib/brumate
 *	BRUMATE_LOG_DIR      logs of jobs            /var/log/brumate
 *	BRUMATE_CONFIG       configuration           /etc/brumate/brumate.conf
 *	BRUMATE_LIBEXEC_DIR  helper programs         (compiled in; the build directory when run from it)
 *
 * Returned strings live as long as the process.
 */
#pragma once

const char *path_runtime_dir(void);
const char *path_state_dir(void);
const char *path_log_dir(void);
const char *path_config(void);

/**
 * Full path of one of our programs or data files ("brumate-shim"): in
 * BRUMATE_LIBEXEC_DIR, beside the running program or one folder above it (as in a build directory),
 * then in libexec. Returns owned, NULL if absent.
 */
char *path_find_helper(const char *name);

/** asprintf(3) that returns the string (owned), or NULL without memory. */
char *path_format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
