// SPDX-License-Identifier: MIT
/* Calls to another of our programs that somebody else may cancel while they wait. */
#pragma once

#include <poll.h>

#include "wire/wire.h"

enum { CANCEL_FDS = 2 };

/** What cancels a call: any of these fds (borrowed; -1: none) showing its events, or a hang-up. */
struct cancel {
	struct pollfd fds[CANCEL_FDS];
};

#define CANCEL_NEVER ((struct cancel){ { { .fd = -1 }, { .fd = -1 } } })

/**
 * relay_call_fds() - wire_call() without a deadline, given up as @cancel says
 *
 * Cancelling hangs up: the other side takes back what it began. Errors to act on: -ECANCELED.
 */
int relay_call_fds(struct wire *w, const char *method, json_t *parameters, const int *fds,
		   size_t n_fds, wire_reply_fn on_reply, void *arg, const struct cancel *cancel,
		   json_t **ret, struct brumate_error *err);

/** relay_call_fds() without fds. */
int relay_call(struct wire *w, const char *method, json_t *parameters, wire_reply_fn on_reply,
	       void *arg, const struct cancel *cancel, json_t **ret, struct brumate_error *err);
