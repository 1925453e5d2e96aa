// SPDX-License-Identifier: MIT
/*
 * What a driver must do for brumate: cases that drive the checkpoint calls from outside on programs
 * of tests/programs. The same cases run on the simulated driver in every build and on hardware.
 *
 * Each case runs in a process of its own that loads the driver anew, so one that crashes or hangs
 * costs only itself. A case ends by returning (passed), fail() or skip().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum case_need {
	NEEDS_TWO_GPUS = 1u << 0,
	DESTRUCTIVE = 1u << 1, /* ends with a process that cannot be restored */
};

struct contract_case {
	const char *name;
	void (*run)(const char *argument);
	const char *argument; /* of run */
	unsigned int needs;   /* enum case_need */
};

extern const struct contract_case cycle_cases[], state_cases[], busy_cases[], refused_cases[],
	gpu_cases[], killed_cases[];

void fail(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));
void skip(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#define EXPECT(cond)                                                  \
	do {                                                          \
		if (!(cond))                                          \
			fail("%s:%d: %s", __FILE__, __LINE__, #cond); \
	} while (0)

/**
 * A number that only hardware can tell: printed with --measure, otherwise compared with the table in
 * expected.h.
 */
void measured(const char *name, int number);

/** Whether numbers are being measured on hardware: sizes are then such that calls take a while. */
bool measuring(void);

/** A scratch directory of this case, removed after it. */
const char *scratch_dir(void);
