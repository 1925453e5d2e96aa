// SPDX-License-Identifier: MIT
/* Locks of bytes of files: refused, or encoded as they were read. */
#include "process/locks.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	auto_(file_locks_fini) struct file_locks a = FILE_LOCKS_EMPTY, b = FILE_LOCKS_EMPTY;
	size_t len = 0, len_again = 0;

	if (file_locks_decode(&a, (const char *)data, len_bytes) < 0)
		return 0;
	auto_free char *text = file_locks_encode(&a, &len);
	if (!text || file_locks_decode(&b, text, len) < 0)
		abort();
	auto_free char *again = file_locks_encode(&b, &len_again);
	if (!again || len != len_again || memcmp(text, again, len))
		abort();
	return 0;
}
