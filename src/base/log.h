// SPDX-License-Identifier: MIT
/*
 * Logging of programs (libraries return errors instead). One line on stderr each; levels as
 * sd-daemon prefixes when stderr is not a terminal, so journald sorts them.
 * error = act, warn = degraded, info = state changes and durations, debug = the rest.
 */
#pragma once

enum log_level { LOG_ERROR = 3, LOG_WARN = 4, LOG_INFO = 6, LOG_DEBUG = 7 };

/** Names the program in each line and takes the level from BRUMATE_LOG_LEVEL (error..debug). */
void log_init(const char *program);

void log_print(enum log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define log_error(...) log_print(LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  log_print(LOG_WARN, __VA_ARGS__)
#define log_info(...)  log_print(LOG_INFO, __VA_ARGS__)
#define log_debug(...) log_print(LOG_DEBUG, __VA_ARGS__)
