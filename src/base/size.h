// SPDX-License-Identifier: MIT
/* Sizes as people read them: "1.07 GiB", powers of 1024, as options take them. Pure. */
#pragma once

#include <stdint.h>

enum { SIZE_TEXT_BYTES = 32 };

/** Writes "512 B", "96.0 MiB", "1.07 GiB" to @ret: three digits, so that nothing that there is reads as none. Returns @ret. */
const char *size_format(char ret[static SIZE_TEXT_BYTES], uint64_t bytes);

/** The same as an argument of printf(3); it lives as long as the block that it stands in. */
#define SIZE_TEXT(bytes) size_format((char[SIZE_TEXT_BYTES]){ 0 }, bytes)
