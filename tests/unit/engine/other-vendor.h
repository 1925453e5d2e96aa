// SPDX-License-Identifier: MIT
/* What test-other-vendor.c knows of the vendor in other-vendor.c, which is the only row of its table of vendors. */
#pragma once

#define OTHER_UUID   "GPU-00000000-0000-0000-0000-000000000007"
#define OTHER_DEVICE "/dev/other"
#define OTHER_BYTES  (1ull << 30)
