// SPDX-License-Identifier: MIT
/* Attributes of processes: refused, or encoded as they were read. */
#include "process/attributes.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	auto_(attributes_fini) struct attributes a = ATTRIBUTES_EMPTY, b = ATTRIBUTES_EMPTY;
	auto_free struct attributes_call *calls = NULL;
	size_t n = 0, len = 0, len_again = 0;

	if (attributes_decode(&a, (const char *)data, len_bytes) < 0)
		return 0;
	auto_free char *text = attributes_encode(&a, &len);
	if (!text || attributes_decode(&b, text, len) < 0)
		abort();
	auto_free char *again = attributes_encode(&b, &len_again);
	if (!again || len != len_again || memcmp(text, again, len))
		abort();
	attributes_calls(&calls, &n, &a);
	return 0;
}
