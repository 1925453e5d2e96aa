// SPDX-License-Identifier: MIT
/*
 * Device memory that others hold for a while beside the program. It is to miss none of it: an allocation that finds no room
 * has it given back first.
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

/* ---- the snapshot: what the shim lets go of piece by piece while a checkpoint is being completed ---- */

/** Notes whether something is held from now on, and has those who wait try again. */
void snapshot_note(bool held);

/** Forgets it: nothing is held. */
void snapshot_forget(void);

/** Whether something is held, as far as was told. */
bool snapshot_is_held(void);

/** What snapshot_wait() compares with. To be called before the allocation is tried. */
unsigned int snapshot_look(void);

/** After an allocation that found no room: waits until something was let go of since @seen. False: nothing is held
 * that could make room. */
bool snapshot_wait(unsigned int *seen);
