// SPDX-License-Identifier: MIT
/* The gate keeps the program's threads out of the driver. Its functions keep errno. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/** Marks the calling thread as in the driver and back; they nest. While the gate is closed, entering
 * waits. */
void gate_enter(void);
void gate_leave(void);

/** Exempts the calling thread (the agent) from the gate for good. */
void gate_exempt(void);

/** Closes it and waits until no thread but the exempt ones is inside. Returns 0; or -ETIMEDOUT, and then it
 * is open again. */
int gate_close(uint64_t deadline_ns);
void gate_open(void);
bool gate_is_closed(void);
