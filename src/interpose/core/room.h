// SPDX-License-Identifier: MIT
/*
 * Device memory that other processes hold for a while next to the program's. The program must not lack any of it: an
 * allocation that finds no room has it given back first.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "wire/agent.h"

/* ---- what the broker holds while this job runs: it has a GPU open to be ready for a copy ---- */

/** After an allocation that found no room: has the memory given back. Returns whether to try again, which is so once:
 * @asked (false at first) is set. */
bool room_ask(bool *asked);

/** Bytes of the GPU @uuid that would be given back. */
uint64_t room_held_bytes(const uint8_t uuid[static AGENT_UUID_BYTES]);

/** Whether the job shares its GPUs with others, which leave when it needs room. */
bool room_is_shared(void);

/** After an allocation that found no room, in a job that shares its GPUs: waits until others have left. Returns whether to
 * try again, for which it may be called again and again. */
bool room_wait_for_neighbours(void);

/* ---- the snapshot: what the shim releases piece by piece while a checkpoint is being completed ---- */

/** Notes whether something is held from now on, and has those who wait try again. */
void snapshot_note(bool held);

/** Forgets it: nothing is held. */
void snapshot_forget(void);

/** Whether something is held, as far as snapshot_note() knows. */
bool snapshot_is_held(void);

/** What snapshot_wait() compares with. To be called before the allocation is tried. */
unsigned int snapshot_look(void);

/** After an allocation that found no room: waits until something was released since @seen. False: nothing is held that
 * could make room. */
bool snapshot_wait(unsigned int *seen);
