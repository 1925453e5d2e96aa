// SPDX-License-Identifier: MIT
/* The page of `brumate inspect --restore`. */
#pragma once

#include <jansson.h>

/** Prints the Foretold @o (borrowed) of the checkpoint at @path for people to read. */
void foretold_print(json_t *o, const char *path);
