// SPDX-License-Identifier: MIT
/* For decoders of text that have an encoder: what was decoded and written again is read and written the
 * same. */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

/** @text, which need not end with a zero, decoded and written again (owned); NULL: refused. The fuzzer's own. */
static char *rewrite(const char *text, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free char *once = rewrite((const char *)data, size);

	if (!once)
		return 0;
	auto_free char *twice = rewrite(once, strlen(once));
	if (!twice || strcmp(once, twice))
		abort();
	return 0;
}
