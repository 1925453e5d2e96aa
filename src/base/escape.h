// SPDX-License-Identifier: MIT
/*
 * Strings of the system (arguments, paths, names) are bytes, strings of JSON are UTF-8. Written as:
 * a backslash is "\\", a control character or a byte that is not part of valid UTF-8 is "\xNN" with
 * two lower-case digits, everything else is itself. Exactly one form per string, so it survives a
 * round trip byte for byte.
 */
#pragma once

#include <stddef.h>

/** Returns the escaped form of the first bytes of @raw up to its NUL or @max_bytes. Owned; NULL
 * without memory. */
char *text_escape(const char *raw, size_t max_bytes);

/** Reads what text_escape() wrote. Returns owned text in @ret; -EBADMSG for any other form. Pure. */
int text_unescape(char **ret, const char *escaped);

/** Reads in place what the kernel writes of paths in /proc: "\\040" for a space, and so on (proc_pid_mountinfo(5)). */
void text_unescape_octal(char *text);
