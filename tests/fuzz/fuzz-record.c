// SPDX-License-Identifier: MIT
/* Records of jobs: any bytes are decoded or refused, and what was decoded is written and read back the
 * same. */
#include "engine/record.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *rewrite(const char *text, size_t len)
{
	auto_(job_fini) struct job j = JOB_EMPTY;

	if (record_decode(&j, text, len, NULL) < 0)
		return NULL;
	auto_json json_t *o = record_encode(&j);
	char *again = o ? json_dumps(o, 0) : NULL;
	if (!again || j.dir || j.state >= JOB_STATE__MAX || !j.argv)
		abort();
	return again;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	auto_free char *once = rewrite((const char *)data, size);

	if (!once)
		return 0;
	auto_free char *twice = rewrite(once, strlen(once));
	if (!twice || strcmp(once, twice))
		abort();
	return 0;
}
