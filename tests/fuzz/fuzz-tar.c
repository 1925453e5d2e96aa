// SPDX-License-Identifier: MIT
/* Headers of a container's archive: read or refused, with a name within its bounds, and what is read is written the same. */
#include "base/tar.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct tar_header h = { .name = "" }, again;
	char name[TAR_NAME_BYTES + 1];
	uint64_t size;

	memcpy(&h, data, len_bytes < sizeof(h) ? len_bytes : sizeof(h));
	if (tar_parse(name, &size, &h) <= 0)
		return 0;
	tar_fill(&again, name, h.type, size);
	if (strlen(name) > TAR_NAME_BYTES || size > INT64_MAX || memcmp(&again, &h, sizeof(h)))
		abort();
	return 0;
}
