// SPDX-License-Identifier: MIT
/*
 * What the files of libbrumate-cuda.so share. The library is loaded before a CUDA program and stands
 * between it and the driver: every entry point of the driver, however the program gets at it, passes
 * the gate; the memory calls end at wrappers of ours. It writes nothing, never ends the program,
 * keeps errno, and does nothing at all in a process that does not use the driver.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/cuda/abi.h"

/* ---- the driver (driver.def, resolve.c) ---- */

/** The driver's functions that wrappers call: not through the gate. Filled before any wrapper runs;
 * one that this driver lacks is NULL. One row per function in driver.def (CALL rows). */
struct driver {
#define CALL(name) __typeof__(name) *name;
#define ENTRY(name)
#include "interpose/cuda/driver.def"
#undef CALL
#undef ENTRY
};
extern struct driver driver;

/** Loads and resolves the driver once; false where there is none. Cheap afterwards. */
bool driver_resolve(void);

/** A wrapper: what an entry point of that (exported, versioned) name goes to instead of the driver.
 * The table is in wrappers.c, ended by an empty name; each is called inside the gate. */
struct wrapper {
	const char *name;
	void *function;
};
extern const struct wrapper wrappers[];

/* ---- the gate (gate.c) ---- */

/** Marks the calling thread as in the driver and back; they nest. While the gate is closed, entering
 * waits. Keep errno. */
void gate_enter(void);
void gate_leave(void);

/** Exempts the calling thread (the agent) from the gate for good. */
void gate_exempt(void);

/** Closes it and waits until no thread but the exempt ones is inside: 0; or -ETIMEDOUT, open again. */
int gate_close(uint64_t deadline_ns);
void gate_open(void);
bool gate_is_closed(void);

/* ---- memory (memory.c …): tables of what is allocated ---- */

/** In the child of a fork: the tables are the parent's memory, which the child cannot use. */
void memory_forget(void);

/* ---- the agent (agent.c) ---- */

/** Starts the agent once the program has initialised the driver (after a successful cuInit), if
 * BRUMATE_AGENT_DIR is set; once per process, again after a fork. Safe from any thread. */
void agent_start(void);
