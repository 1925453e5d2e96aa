// SPDX-License-Identifier: MIT
/* Bytes as hexadecimal digits. */
#pragma once

/** The value of a lower-case digit; -1 for any other character. */
static inline int hex_value(int c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}
