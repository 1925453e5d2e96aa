// SPDX-License-Identifier: MIT
/* Sizes as people read them. See size.h. */
#include "base/size.h"

#include <stddef.h>
#include <stdio.h>

const char *size_format(char ret[static SIZE_TEXT_BYTES], uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	size_t unit = 0;

	for (; value >= 999.5 && unit + 1 < sizeof(units) / sizeof(units[0]); unit++)
		value /= 1024;
	int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
	snprintf(ret, SIZE_TEXT_BYTES, "%.*f %s", decimals, value, units[unit]);
	return ret;
}
