// SPDX-License-Identifier: MIT
/* Waiting for other threads of a test: until something is so, or until one sleeps in the kernel. */
#pragma once

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "check.h"

#define await(condition)                                 \
	do {                                             \
		uint64_t until_ = deadline_in_ms(60000); \
		while (!(condition)) {                   \
			CHECK(clock_now_ns() < until_);  \
			sched_yield();                   \
		}                                        \
	} while (0)

/* A thread that does nothing but one call sleeps only where that call waits. */
static inline bool is_asleep(int tid)
{
	char path[64], line[512];
	const char *after;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	f = fopen(path, "re");
	if (!f)
		return false;
	after = fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
	fclose(f);
	return after && after[1] == ' ' && after[2] == 'S';
}

static inline void await_asleep(const atomic_int *tid)
{
	await(atomic_load(tid) && is_asleep(atomic_load(tid)));
}
