// SPDX-License-Identifier: MIT
/* What our programs need more of than others, while the programs of users get what their callers had. */
#pragma once

/* Each is called once, when a program starts, and remembers what was there before. */

/** Raises RLIMIT_NOFILE to its hard limit. */
void limits_raise_files(void);
/** Makes the kernel spare this process, as far as it allows, where memory runs out. */
void limits_lower_score(void);

/** Sets back what was changed, in a child that is to be somebody else's. Async-signal-safe. */
void limits_restore(void);
