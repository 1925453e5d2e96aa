// SPDX-License-Identifier: MIT
/* UUIDs of simulated GPUs: "SIM" and a number, that of the GPU unless the configuration says another. */
#pragma once

enum { UUID_TEXT_BYTES = sizeof("GPU-53494d00-0000-0000-0000-000000000000") };

void uuid_text(char ret[static UUID_TEXT_BYTES], int gpu);
