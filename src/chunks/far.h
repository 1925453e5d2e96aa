// SPDX-License-Identifier: MIT
/* chunks_read() of packs that are somewhere else (pack-source.h): chunks that lie side by side in one request,
 * several requests at a time, in a bounded amount of memory. */
#pragma once

#include "chunks/reader.h"

int chunks_read_far(struct chunks_reader *m, const struct chunks_task *task,
		    struct brumate_error *err);
