// SPDX-License-Identifier: MIT
/* The gate keeps the program's threads out of the driver. Its functions keep errno. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/** Marks the calling thread as in the driver and back; they nest. While the gate is closed, entering
 * waits. */
void gate_enter(void);
void gate_leave(void);

struct gate_call {
	const char *name; /* static; NULL: not known */
	bool only_looks;  /* while all contexts are idle, the library can answer it itself */
};
/** Like gate_enter(). False: the gate is closed over idle contexts, and the call only looks; the thread has not entered. */
bool gate_enter_call(const struct gate_call *call);

/** Waits while the gate is closed, in the middle of a call that has not begun its work. */
void gate_pass(void);

/** Exempts the calling thread (the agent) from the gate permanently. */
void gate_exempt(void);

/** Closes it: threads that arrive are held back. Threads may still be inside. -EBUSY: it is closed. */
int gate_close(void);
/** The same without the fence, before anybody can be inside but callers that are to gate_pass(). */
void gate_hold(void);
/** After gate_close() or gate_hold(), once all contexts are idle, and until gate_open(): calls that only look are answered,
 * and those that wait ask for the GPU (wake.h). */
void gate_settle(void);
void gate_open(void);
bool gate_is_closed(void);

/** Now and then, from the agent's thread: has calls that wait ask once more, and the next call that uses the GPU note that
 * it did. */
void gate_look_in(void);

/** While it is closed, for the one thread that closed it: */

/** Whether no thread but the exempt ones is inside, nor about to be with a ticket. */
bool gate_is_empty(void);

/** Whether it holds a thread back. */
bool gate_holds_back(void);

/** Lets one call in, of a thread that waits or comes. Once at a time: until gate_is_empty(). */
void gate_let_through(void);

/** Takes the ticket of gate_let_through() back; false: a thread has used it. */
bool gate_take_back(void);

/** A count of what may have changed here, and a wait until it is no longer @seen: threads that came or left,
 * and gate_wake_closer(). */
unsigned int gate_changes(void);
void gate_wait(unsigned int seen, uint64_t deadline_ns);
void gate_wake_closer(void);

/* ---- drain.c ---- */

/**
 * Closes the gate, which is open, at a moment when no thread is inside, all contexts of the process are idle, no stream
 * is being captured, and the same is so for all members of the job. @fd is of a struct agent_drain (wire/agent.h), in
 * which this process is @member; -1: there are no others. Returns 0; or -ETIMEDOUT, -ECANCELED (the agent's client is
 * gone), -errno, and then the gate is open again and @why, which is static, says what it waited for. @ret_failed: the
 * permanent error of a context (backend_is_lasting(), -ESHUTDOWN); 0: none.
 */
int drain(unsigned int member, int fd, uint64_t deadline_ns, int *ret_failed, const char **why);

/** Whether other members of the job still wait with drain() here for all to be idle: until then none has closed its
 * gate permanently. Only where agent_lend_meanwhile() has been called. */
bool drain_waits(void);
