// SPDX-License-Identifier: MIT
/* GPUs named by their number in a map of old to new ones. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"
#include "gpu/gpu.h"

/**
 * gpu_map_resolve() - replace numbers by UUIDs
 * @map: [{from, to}], borrowed
 * @gpus: as the broker lists them, borrowed; their order gives the numbers
 *
 * Pure. Return: 0 and @ret (owned) with UUIDs only; -EINVAL names the pair that is wrong.
 */
int gpu_map_resolve(json_t **ret, json_t *map, const struct dev_gpu *gpus, size_t n_gpus,
		    struct brumate_error *err);

/** Whether @map names any GPU by its number. */
bool gpu_map_has_numbers(json_t *map);
