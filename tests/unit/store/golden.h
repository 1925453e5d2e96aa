// SPDX-License-Identifier: MIT
/* What the golden images hold. It never changes. */
#pragma once

#include "memory-job.h"

static inline void golden_job(struct memory_job *j)
{
	add_region(j, 0, FILL_ZERO, 0);
	add_region(j, 100000, FILL_TEXT, 1);
	add_region(j, 8192, FILL_RANDOM, 2);
	add_region(j, 5000, FILL_RANDOM, 3);
	add_region(j, 2 * CHUNK_BYTES + 4096, FILL_ZERO, 0);
	memcpy(j->bytes[4] + 2 * CHUNK_BYTES, j->bytes[2], 4096);
	add_region(j, 8192, FILL_RANDOM, 2); /* again */
}
