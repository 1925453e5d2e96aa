// SPDX-License-Identifier: MIT
/* Memory that is mapped from a file which others may truncate: accessing the truncated part raises SIGBUS. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/**
 * Copies @len_bytes from a mapping of a file. Returns 0, or -EFAULT if a part of them does not exist any more, or
 * cannot be read; the bytes at @to are invalid then. @past_cache: the copy is for a device and not read by a
 * processor, so it bypasses the caches: 16 threads of a Xeon copy 65 GB/s that way instead of 50, 2 MiB at a time.
 *
 * From the first call on this process has a handler of SIGBUS; a SIGBUS that has nothing to do with such a copy ends
 * the process as usual. So it is for our programs, not for libraries in other programs.
 */
int mapped_copy(void *to, const void *from, size_t len_bytes, bool past_cache);
