// SPDX-License-Identifier: MIT
/* The text of kernels.ptx, embedded at build time. */
#pragma once

extern const char kernels_ptx[];
