// SPDX-License-Identifier: MIT
/* Functions that the main program takes from its libraries, replaced: one entry in its table of imports. */
#pragma once

/**
 * Makes the main program call @replacement wherever it calls the imported function @name. Returns what
 * it called so far, or NULL where it imports no such function (a static program).
 */
void *import_replace(const char *name, void *replacement);
