// SPDX-License-Identifier: MIT
/*
 * Asking for something to be done: the methods of io.brumate, called in this process with its user's rights.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "wire/wire.h"

/**
 * client_call() - call "io.brumate.@method"
 * @parameters: borrowed; NULL for {}
 * @on_reply: for streamed replies; may be NULL
 * @cancel_fd: once readable, the operation is cancelled and its final word awaited; -1: never
 * @ret: owned; may be NULL
 *
 * Errors to act on: those of the method.
 */
int client_call(const char *method, json_t *parameters, wire_reply_fn on_reply, void *arg,
		int cancel_fd, json_t **ret, struct brumate_error *err);

/** client_call() that shows progress as @verb's on the terminal, and that Ctrl-C cancels. @fd: goes along
 * (borrowed); may be NULL. */
int client_call_shown(const char *method, const char *verb, json_t *parameters, const int *fd,
		      json_t **ret, struct brumate_error *err);

/** client_call() without replies to stream and without cancelling. */
int client_ask(const char *method, json_t *parameters, json_t **ret, struct brumate_error *err);

/** client_ask() with {key: value}. */
int client_ask_about(const char *method, const char *key, const char *value, json_t **ret,
		     struct brumate_error *err);

/* ---- signals ---- */

/**
 * From here on SIGINT, SIGTERM and SIGHUP make the returned fd (borrowed) readable, one byte each,
 * its number. With @second_exits, the second one ends the process at once. <0: -errno.
 */
int interrupt_watch(bool second_exits);

/** Whether one has come since interrupt_watch(). Any thread may ask. */
bool interrupt_seen(void);

/** The number of a signal that came, or 0. */
int interrupt_take(void);
