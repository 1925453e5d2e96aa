// SPDX-License-Identifier: MIT
/* Heads of requests of HTTP: read or refused, and never longer than what has come. */
#include "edges/serve/http-head.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct http_head q;

	if (http_head_parse(&q, (const char *)data, len_bytes) == 1 &&
	    (q.head_bytes > len_bytes || !*q.method || !*q.target || strpbrk(q.target, " \r\n")))
		abort();
	return 0;
}
