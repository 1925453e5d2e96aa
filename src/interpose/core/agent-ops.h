// SPDX-License-Identifier: MIT
/* What the agent does for each request, apart from the socket it comes by. */
#pragma once

#include "interpose/core/memory.h"

/** A request as received: checked for size and count, its descriptors owned by whoever received it. */
struct agent_job {
	const struct agent_request *request;
	int fds[AGENT_PIECES_MAX]; /* received, or to be sent: closed by the caller */
	size_t n_fds;
	uint64_t next_id; /* LIST: of the next packet */
};

/** Fills @reply, which is zeroed but for its version. */
void agent_run(struct agent_job *job, struct agent_reply *reply);

/** What to do when the peer hangs up without DETACH. */
void agent_hung_up(void);

/** LEND and TAKE_BACK (ipc.c). */
void ipc_lend(struct agent_job *job, struct agent_reply *reply);
void ipc_take_back(struct agent_job *job, struct agent_reply *reply);

/** Waits until the work in all contexts is done: 0, -ETIMEDOUT, -errno (idle.c). */
int idle_wait(uint64_t deadline_ns);
