// SPDX-License-Identifier: MIT
/*
 * What the tests of memory share. Each test is a CUDA program on a simulated machine of its own, with
 * the interposer before the driver, and at the same time the other end of its own agent.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#include "check.h"
#include "driver-abi.h"
#include "wire/agent.h"

/** Makes the machine and the agent's directory, and starts the driver with device 0 current. */
CUcontext job_start(const char *vram_mib);

/** The first half alone, for tests of several processes: each then uses the driver by itself. */
void job_prepare(const char *vram_mib);
CUcontext job_enter(void);

/** Connects to the agent of this process. */
int agent_connect(void);
/** To that of another process of the job. */
int agent_connect_to(pid_t pid);

/** One request; the descriptors of the reply, if any, go to @fds. Fills @reply, returns its error. */
int agent_ask(int conn, struct agent_request *request, struct agent_reply *reply, int *fds,
	      size_t n_fds);

/** The same for an operation that takes no pieces. */
int agent_do(int conn, enum agent_op op, struct agent_reply *reply);

/** Sends a request without descriptors, and waits for no reply. */
void agent_send(int conn, struct agent_request *request);

/** GATE within five seconds. */
int agent_gate(int conn, struct agent_reply *reply);

/** All pieces, as LIST tells; owned. */
struct agent_piece *agent_list(int conn, size_t *ret_n);

/** GATE, LIST, EXPORT, UNMAP: returns what there was, with the descriptors. */
struct parked {
	struct agent_piece *pieces;
	int *fds;
	size_t n;
};
struct parked agent_park(int conn);

/** MAP of all. */
void agent_map(int conn, const struct parked *parked);
void parked_free(struct parked *parked);

/** MAP of all, OWN; frees @parked. */
void agent_unpark(int conn, struct parked *parked);

/** Everything once: park, unpark, OPEN. */
void agent_cycle(void);

/** Fills both ends of the memory with a pattern of @seed, and checks that they hold it. */
void fill(CUdeviceptr ptr, size_t bytes, unsigned int seed);
bool holds(CUdeviceptr ptr, size_t bytes, unsigned int seed);
