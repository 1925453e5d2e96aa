// SPDX-License-Identifier: MIT
/*
 * The kinds of GPU use that `kinds` can show: each is a way in which real programs hold GPU state,
 * set up once and used and checked at every step.
 */
#pragma once

#include "cuda.h"
#include "program.h"

struct kind {
	const char *name, *summary;
	void (*setup)(const struct options *options);
	step_fn step;
};

extern const struct kind memory_kinds[], shared_kinds[], work_kinds[], process_kinds[];

/** `idle` and `none` have no GPU work: their steps only count. */
bool step_nothing(void *state, uint64_t n);
