// SPDX-License-Identifier: MIT
/* UUIDs of simulated GPUs as text. */
#include "uuid.h"

#include <stdio.h>

#include "config.h"

void uuid_text(char ret[static UUID_TEXT_BYTES], int gpu)
{
	snprintf(ret, UUID_TEXT_BYTES, "GPU-53494d00-0000-0000-0000-%012x",
		 (unsigned int)config_get()->machine.gpu[gpu].uuid);
}
