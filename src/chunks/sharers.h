// SPDX-License-Identifier: MIT
/* Which other checkpoints of a store have a pack. */
#pragma once

#include <stddef.h>

/** Writes "; shared with A, B and 3 more" for the file @path of the checkpoint @id, which is open as
 * @dir_fd; nothing where nobody else has it, or that cannot be told. */
void sharers_describe(char *ret, size_t room, int dir_fd, const char *id, const char *path);
