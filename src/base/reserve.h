// SPDX-License-Identifier: MIT
/*
 * File descriptors put by. Where a process or the machine has no others left, what has to be opened to look at a job
 * or to put it right gets one of these. There is one stock for each process, as there is one table of descriptors.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

enum { RESERVE_FDS = 32 };

/**
 * Takes what the stock lacks, as far as descriptors are left. A program that needs the stock fills it when it
 * starts, and again whenever something may have been closed; in others it is empty.
 */
void reserve_fill(void);

/** How many the stock has. */
int reserve_count(void);

/** After a call that failed with @error (an errno): gives up one of the stock where that can help. Returns whether
 * the call is worth another try. */
bool reserve_lend(int error);

/** Makes a call that returns a negative number and errno where it fails; where descriptors have run out, with the
 * help of the stock. */
#define RESERVE_TRY(call)                                     \
	({                                                    \
		__typeof__(call) got_;                        \
		do                                            \
			got_ = (call);                        \
		while (got_ < 0 && reserve_lend(errno));      \
		got_;                                         \
	})
