// SPDX-License-Identifier: MIT
/*
 * The audit line: which user checkpointed, restored, exported, imported, pushed or pulled what, where, and with which
 * result. It is sent to the system's log as a datagram, facility authpriv. If it cannot be received at once it is
 * lost: an operation never waits for a log.
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

/** The caller, and the fd that came with the call (borrowed; NULL: none). */
struct audit_caller {
	uid_t uid;
	pid_t pid;
	const int *fd;
};

/** Writes the line, if @method is audited. @reply: NULL if it failed, with the code @r. */
void audit_write(const char *method, const struct audit_caller *caller, json_t *parameters,
		 json_t *reply, int r);
