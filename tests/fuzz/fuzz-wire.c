// SPDX-License-Identifier: MIT
/* A frame from a stranger, and the error it may carry. */
#include "wire/wire.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct brumate_error err = BRUMATE_ERROR_NONE;
	auto_json json_t *json = NULL;

	if (wire_decode(&json, (const char *)data, len_bytes, &err) < 0) {
		if (json || !err.code || !err.text[0])
			abort();
		return 0;
	}
	wire_error_from_json(&err, json);
	if (err.code <= 0 || !err.text[0])
		abort();
	auto_json json_t *back = wire_error_to_json(&err);
	if (!back)
		abort();
	return 0;
}
