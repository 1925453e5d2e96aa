// SPDX-License-Identifier: MIT
/* What a kubelet answers: refused, or paths that can be printed. */
#include "edges/k8s/kubelet.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	json_t *items = NULL, *pods = NULL, *item;
	size_t i;

	if (kubelet_pods_decode(&pods, (const char *)data, len_bytes, NULL) == 0) {
		json_array_foreach (pods, i, item)
			if (!json_string_value(json_object_get(item, "namespace")) ||
			    !json_string_value(json_object_get(item, "pod")))
				abort();
		json_decref(pods);
	}
	if (kubelet_answer_decode(&items, (const char *)data, len_bytes, NULL) < 0)
		return 0;
	json_array_foreach (items, i, item) {
		const char *path = json_string_value(item);

		if (!path || *path != '/')
			abort();
		for (; *path; path++)
			if ((unsigned char)*path < 0x20 || *path == 0x7f)
				abort();
	}
	json_decref(items);
	return 0;
}
