// SPDX-License-Identifier: MIT
/*
 * What the shim holds of this job's device memory beside it while a checkpoint is being completed: the snapshot,
 * which it lets go of piece by piece. Memory that the program asks for comes first, so an allocation that finds no
 * room waits until some was let go of.
 */
#pragma once

#include <stdbool.h>

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
