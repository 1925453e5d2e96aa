// SPDX-License-Identifier: MIT
/* memory_read() of packs that are somewhere else (source.h): chunks that lie side by side in one request,
 * several requests at a time, in a bounded amount of memory. */
#pragma once

#include "store/memory-read.h"

int memory_read_far(struct memory_reader *m, const struct memory_task *task,
		    struct brumate_error *err);
