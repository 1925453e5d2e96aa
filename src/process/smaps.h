// SPDX-License-Identifier: MIT
/* Lines of /proc/PID/smaps, which is foreign text. Pure. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/** Whether a mapping begins here; else it is a field of one. */
static inline bool smaps_is_head(const char *line)
{
	return *line && strchr("0123456789abcdef", *line);
}

/** Bytes of "KEY   12 kB", with @key "Rss:" or the like; 0: another line. */
static inline uint64_t smaps_bytes(const char *line, const char *key)
{
	size_t n = strlen(key);

	return strncmp(line, key, n) ? 0 : strtoull(line + n, NULL, 10) << 10;
}
