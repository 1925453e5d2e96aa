// SPDX-License-Identifier: MIT
/* Lets members run again that were stopped with their job (engine/standstill.c stops them). */
#pragma once

#include "job/target.h"

/** Sends SIGCONT to those of @t->stopped that go first: members with GPU state, and those with an agent. */
void standstill_wake_first(const struct target *t);

/** Sends it to all of them, those that go first before the others. */
void standstill_wake(const struct target *t);

/** The same, and empties the list; it does not save the record. */
void standstill_end(struct target *t);
