// SPDX-License-Identifier: MIT
/* TCP connections: refused, or encoded as they were read. */
#include "process/connections.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	auto_(connections_fini) struct connections a = CONNECTIONS_EMPTY, b = CONNECTIONS_EMPTY;
	size_t len = 0, len_again = 0;

	if (connections_decode(&a, (const char *)data, len_bytes) < 0)
		return 0;
	auto_free char *text = connections_encode(&a, &len);
	if (!text || connections_decode(&b, text, len) < 0)
		abort();
	auto_free char *again = connections_encode(&b, &len_again);
	if (!again || len != len_again || memcmp(text, again, len))
		abort();
	return 0;
}
