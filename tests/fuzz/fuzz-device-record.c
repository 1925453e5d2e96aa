// SPDX-License-Identifier: MIT
/* A record of a device, from any bytes: a path below /dev and flags that create nothing, or refused. */
#include "criu-plugin/plugin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct device_record f;
	int r = device_decode(&f, (const char *)data, len_bytes);

	if (r < 0 && r != -EBADMSG)
		abort();
	if (r == 0 && (strncmp(f.path, "/dev/", 5) || strstr(f.path, "/../") ||
		       (f.flags & (O_CREAT | O_TRUNC | O_EXCL))))
		abort();
	return 0;
}
