// SPDX-License-Identifier: MIT
/* Which CRIU the plugin is in. */
#pragma once

/** How many kinds of hooks this CRIU has: 12 in 4.0 and 4.1, more since 4.2. 0: that cannot be told. */
unsigned criu_hook_kinds(void);
