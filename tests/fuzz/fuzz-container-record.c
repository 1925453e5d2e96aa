// SPDX-License-Identifier: MIT
/* Records of containers: any bytes are decoded or refused, and what was decoded is written and read back the same. */
#include "edges/containers/container-private.h"
#include "rewrite.h"

static char *rewrite(const char *text, size_t len)
{
	auto_(container_record_fini) struct container_record r = CONTAINER_RECORD_EMPTY;

	if (container_record_decode(&r, text, len, NULL) < 0)
		return NULL;
	if (r.n_processes > CONTAINER_PROCESSES_MAX || r.n_gpus > MANIFEST_GPUS_MAX)
		abort();
	for (size_t i = 0; i < r.n_processes; i++)
		if (r.processes[i].pid <= 0 || r.processes[i].restore_thread <= 0)
			abort();
	char *again = container_record_encode(&r);
	if (!again)
		abort();
	return again;
}
