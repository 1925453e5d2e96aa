// SPDX-License-Identifier: MIT
/* Options of sockets: refused, or encoded as they were read. */
#include "process/socket-options.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	auto_(socket_options_fini) struct socket_options a = SOCKET_OPTIONS_EMPTY,
							 b = SOCKET_OPTIONS_EMPTY;
	size_t len = 0, len_again = 0;

	if (socket_options_decode(&a, (const char *)data, len_bytes) < 0)
		return 0;
	auto_free char *text = socket_options_encode(&a, &len);
	if (!text || socket_options_decode(&b, text, len) < 0)
		abort();
	auto_free char *again = socket_options_encode(&b, &len_again);
	if (!again || len != len_again || memcmp(text, again, len))
		abort();
	return 0;
}
