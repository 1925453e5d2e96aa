// SPDX-License-Identifier: MIT
/*
 * The audit line: who checkpointed, restored, exported, imported, pushed or pulled what, where, and what came of it. It
 * goes to the system's log as a datagram, facility authpriv. Where nobody takes it at once, it is lost: an operation
 * never waits for a log.
 */
#pragma once

#include <jansson.h>
#include <sys/types.h>

/** Who called, and the fd that came with it (borrowed; NULL: none). */
struct audit_caller {
	uid_t uid;
	pid_t pid;
	const int *fd;
};

/** Writes the line, if @method is one that is audited. @reply: NULL where it failed, with the code @r. */
void audit_write(const char *method, const struct audit_caller *caller, json_t *parameters,
		 json_t *reply, int r);
