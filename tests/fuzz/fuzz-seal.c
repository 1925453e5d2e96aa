// SPDX-License-Identifier: MIT
/* Boxes: any bytes are refused, what was closed opens, and not after a change that the input chooses. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/seal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct seal_key key = { { 1, 2, 3 } };

static void meddle(uint8_t *box, size_t len, const uint8_t *data, size_t size, uint8_t *out)
{
	const struct seal_with with = { data, size / 2 };
	size_t at = 0;

	for (size_t i = 0; i < size; i++)
		at = at * 31 + data[i];
	if (seal_open(out, &key, with, box, len) < 0 || memcmp(out, data, size))
		abort();
	box[at % len] ^= (uint8_t)(1u << at / len % 8);
	if (seal_open(out, &key, with, box, len) != -EBADMSG)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free uint8_t *box = malloc(size + SEAL_EXTRA_BYTES);
	auto_free uint8_t *out = malloc(size + 1);
	struct seal_key parsed;
	int r = seal_key_parse(&parsed, data, size);

	if (!box || !out || (r < 0 && r != -EINVAL) || (r == 0 && size > 65))
		abort();
	if (seal_open(out, &key, SEAL_WITH_NOTHING, data, size) != -EBADMSG)
		abort();
	if (seal_close(box, &key, (struct seal_with){ data, size / 2 }, data, size) < 0)
		abort();
	meddle(box, size + SEAL_EXTRA_BYTES, data, size, out);
	return 0;
}
