// SPDX-License-Identifier: MIT
/* Foreign text made safe to show: without control characters, also those of Unicode. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** Decodes the first character of the @left bytes at @text, which are not 0; a NUL ends them too. Returns how many of them it has; 0:
 * it is not UTF-8 (cut off, too long a form, a surrogate, too large). */
size_t utf8_decode(uint32_t *ret, const char *text, size_t left);

/**
 * Bytes of the character at the beginning of @text, which is not empty: 1 to 4. @ret_safe says whether a terminal only
 * draws it. Not safe: C0, DEL and C1 controls, characters that set the direction of text (Unicode's bidirectional
 * controls) or begin a line (U+2028, U+2029), and bytes that are no UTF-8, as a terminal may take those for C1.
 */
size_t plain_step(const char *text, bool *ret_safe);

/** Puts @instead, an ASCII character, in the place of each byte of characters that are not safe. */
void plain_make(char *text, char instead);
