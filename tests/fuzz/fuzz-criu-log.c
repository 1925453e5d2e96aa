// SPDX-License-Identifier: MIT
/* The reason of a failure, from any bytes: one printable line that fits, or none. */
#include "criu/criu.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char reason[64];

	if (criu_log_reason((const char *)data, len_bytes, reason, sizeof(reason)) < 0)
		return 0;
	size_t n = strnlen(reason, sizeof(reason));
	if (n == 0 || n == sizeof(reason))
		abort();
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)reason[i] < ' ')
			abort();
	criu_hint_for(reason);
	return 0;
}
