// SPDX-License-Identifier: MIT
/* The agent: our thread in a process that uses the driver. It serves the job's shim, and the agents of
 * processes that open memory of this one. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "wire/agent.h"

/** Starts the agent before the program initialises the driver, if BRUMATE_AGENT_DIR is set; once per process,
 * again after a fork. Safe from any thread, and done when it returns. The gate is closed until the agent has
 * seen whether its job is being suspended: the caller is to gate_pass(). */
void agent_start(void);

/** How far the process is with the driver. STARTING: it is being initialised, or the gate holds that back. ENDING:
 * exit() has begun. */
enum agent_life { AGENT_LIFE_READY, AGENT_LIFE_STARTING, AGENT_LIFE_ENDING };
void agent_set_life(enum agent_life life);
enum agent_life agent_life(void);

/** Whether the process is of a job, whose shim wants an agent in it once it uses the driver. */
static inline bool agent_is_wanted(void)
{
	const char *dir = getenv(AGENT_DIR_VARIABLE);

	return dir && *dir;
}

/** In a forked child: the parent's agent is not ours. */
void agent_forget(void);

/** For the agent's thread while it serves a request: whether the client has hung up, or died. */
bool agent_client_is_gone(void);

/** What names this process to others of its job. */
uint64_t agent_token(void);

/* ---- the agents of other processes ---- */

/** What names this job to processes of others; 0: nothing does. */
uint32_t neighbour_here(void);

/** Connects to another process's agent, in the job that calls itself @there: the socket, owned, or -errno. */
int neighbour_connect(uint32_t there, int pid);

/** The agent's thread does something that may have to wait for neighbours: from here on until agent_lend_no_more()
 * another one answers them. Without room for it they wait as they would else. */
void agent_lend_meanwhile(void);
void agent_lend_no_more(void);

/* ---- operations that lend.c does ---- */

/** A request as received: checked for size and count, its descriptors owned by the code that received it. */
struct agent_job {
	const struct agent_request *request;
	int fds[AGENT_PIECES_MAX]; /* received, or to be sent: closed by the caller */
	size_t n_fds;
	uint64_t next_id; /* LIST: of the next packet */
};

void lend_pieces(struct agent_job *job, struct agent_reply *reply);
void lend_take_back(struct agent_job *job, struct agent_reply *reply);
void lend_event(struct agent_job *job, struct agent_reply *reply);
void lend_take_event_back(struct agent_job *job, struct agent_reply *reply);
