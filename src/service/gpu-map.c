// SPDX-License-Identifier: MIT
/* Resolving numbers of GPUs; see gpu-map.h. */
#include "service/gpu-map.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "wire/wire.h"

static bool is_number(const char *text)
{
	return text && isdigit((unsigned char)text[0]);
}

bool gpu_map_has_numbers(json_t *map)
{
	json_t *pair;
	size_t i;

	json_array_foreach (map, i, pair)
		if (is_number(json_string_value(json_object_get(pair, "from"))) ||
		    is_number(json_string_value(json_object_get(pair, "to"))))
			return true;
	return false;
}

/* @ret is borrowed from @pair or @gpus. */
static int resolve(const char **ret, json_t *pair, const char *side, const struct dev_gpu *gpus,
		   size_t n_gpus, struct brumate_error *err)
{
	const char *name = json_string_value(json_object_get(pair, side));
	char *end;

	if (!name || !*name)
		return wire_fail_parameter(err, "gpu_map",
					   "want [{from, to}] with UUIDs or numbers");
	if (!is_number(name)) {
		*ret = name;
		return 0;
	}

	unsigned long number = strtoul(name, &end, 10);
	if (*end || number >= n_gpus) {
		brumate_fail(err, EINVAL, "GPU map: there is no GPU %s (this machine has %zu)",
			     name, n_gpus);
		brumate_hint(err, "`brumate doctor` lists the GPUs");
		return -EINVAL;
	}
	*ret = gpus[number].uuid;
	return 0;
}

int gpu_map_resolve(json_t **ret, json_t *map, const struct dev_gpu *gpus, size_t n_gpus,
		    struct brumate_error *err)
{
	auto_json json_t *resolved = json_array();
	json_t *pair;
	size_t i;

	json_array_foreach (map, i, pair) {
		const char *from = NULL, *to = NULL;
		int r = resolve(&from, pair, "from", gpus, n_gpus, err);

		if (r == 0)
			r = resolve(&to, pair, "to", gpus, n_gpus, err);
		if (r < 0)
			return r;
		if (json_array_append_new(resolved,
					  json_pack("{s:s,s:s}", "from", from, "to", to)) < 0)
			return brumate_fail(err, ENOMEM, "GPU map: %m");
	}
	if (!resolved)
		return brumate_fail(err, ENOMEM, "GPU map: %m");
	*ret = take_ptr(&resolved);
	return 0;
}
