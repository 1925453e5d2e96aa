// SPDX-License-Identifier: MIT
/* CRIU's image files come with a checkpoint, from anywhere. */
#include "criu/images.h"
#include "criu/mend.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

/* What was mended is right. */
static void mend(const uint8_t *data, size_t len_bytes)
{
	pid_t threads[] = { 5, 6 };
	const struct criu_image_process p = { .pid = 5, .threads = threads, .n_threads = 2 };
	uint32_t id = 7;
	const struct criu_semaphores semaphores = { &id, 1 };
	struct criu_mended once, twice;

	if (criu_mend_core(&once, data, len_bytes, &p) == 1) {
		if (criu_mend_core(&twice, once.bytes, once.len_bytes, &p) != 0)
			abort();
		criu_mended_fini(&once);
	}
	if (criu_mend_files(&once, data, len_bytes, &semaphores) == 1)
		criu_mended_fini(&once);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct criu_image_tree tree;
	struct criu_image_stats stats;
	struct criu_image_thread thread;
	struct criu_image_filters *filters = NULL;
	struct digest digest;

	criu_image_stats_decode(&stats, data, len_bytes);
	if (criu_image_filters_decode(&filters, data, len_bytes) == 0)
		criu_image_filters_digest(&digest, filters, 0);
	criu_image_filters_free(filters);
	if (criu_image_thread_decode(&thread, data, len_bytes) == 0)
		criu_image_thread_fini(&thread);
	mend(data, len_bytes);
	if (criu_image_tree_decode(&tree, data, len_bytes) < 0)
		return 0;
	for (size_t i = 0; i < tree.n; i++)
		if (tree.items[i].pid <= 0 || !tree.items[i].threads)
			abort();
	criu_image_tree_fini(&tree);
	return 0;
}
