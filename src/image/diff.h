// SPDX-License-Identifier: MIT
/* What differs between two checkpoints. Pure. */
#pragma once

#include <jansson.h>

#include "image/manifest.h"

/**
 * Compares @from with @to. Owned; NULL without memory. An object of
 *
 *	fields     [{name, from, to}]: members of the manifest, of its job and its host, that differ
 *	gpus, processes, externals, files, phases
 *	           {added, removed, changed}: added and removed items whole, changed as {name, from, to}
 *	           with the members that differ only; matched by uuid, pid, key, path, name
 *	same_files, same_bytes
 *	           files that are the same in both, and their bytes
 */
json_t *manifest_diff(const struct manifest *from, const struct manifest *to);
