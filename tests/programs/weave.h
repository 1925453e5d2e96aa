// SPDX-License-Identifier: MIT
/*
 * weave SEED: a program made at random, of two to eight members, each a chain of processes that begin, work and
 * end. All that it does follows from the seed, but for time, so all its data is known. Its parts: weave.c has
 * the members and their processes, weave-work.c what one does in a step.
 */
#pragma once

#include <stdatomic.h>

#include "cuda.h"
#include "program.h"

enum { WEAVE_MEMBERS_MAX = 8 };

/** Numbers that follow from where they are thrown. */
struct dice {
	uint64_t state;
};

struct dice dice_of(uint64_t seed, uint64_t what, uint64_t which);
/** From 0 to @n - 1. */
unsigned int dice_throw(struct dice *dice, unsigned int n);
/** Whether it is so, once in @n times. */
static inline bool dice_once_in(struct dice *dice, unsigned int n)
{
	return dice_throw(dice, n) == 0;
}

/** Plain CPU memory that all processes share: what kernels of each member have reached. */
struct weave_page {
	_Atomic uint32_t reached[WEAVE_MEMBERS_MAX];
};

struct weave {
	const struct options *options;
	uint64_t seed;
	unsigned int n_members;
	struct weave_page *page;
};

/** What a process does from its first step to its last. Any failure ends the program. */
struct work;
struct work *work_begin(const struct weave *weave, unsigned int member, uint64_t first_step);
/** Does a step; false says the data is wrong. */
bool work_step(struct work *work, uint64_t n);
/** Waits for all that is under way, and lets go of it. */
void work_end(struct work *work);
