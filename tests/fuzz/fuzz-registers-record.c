// SPDX-License-Identifier: MIT
/* What a process was permitted comes with a checkpoint, from anywhere. */
#include "criu-plugin/registers.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	const uint64_t all = registers_decode((const char *)data, len_bytes, 0);

	for (pid_t pid = 1; pid < 8; pid++)
		if (registers_decode((const char *)data, len_bytes, pid) & ~all)
			abort();
	registers_lost(data, len_bytes, REGISTERS_SAVED);
	return 0;
}
