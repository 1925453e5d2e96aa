// SPDX-License-Identifier: MIT
/* Records of jobs: any bytes are decoded or refused, and what was decoded is written and read back the
 * same. */
#include "job/record.h"
#include "rewrite.h"

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
