// SPDX-License-Identifier: MIT
/*
 * Device memory that the broker takes while this job runs, as it has a GPU open to be ready for a copy. The program
 * is to miss none of it: it counts as free, and an allocation that finds no room has it given back first.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "wire/agent.h"

/** After an allocation that found no room: has the memory given back. Returns whether to try again, which is so once:
 * @asked (false at first) is set. */
bool room_ask(bool *asked);

/** Bytes of the GPU @uuid that would be given back. */
uint64_t room_held_bytes(const uint8_t uuid[static AGENT_UUID_BYTES]);
