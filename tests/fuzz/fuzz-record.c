// SPDX-License-Identifier: MIT
/* Records of jobs: any bytes are decoded or refused, and what was decoded is written and read back the
 * same. What is seen of one at sight is what it says. */
#include "job/record.h"
#include "rewrite.h"

static char *rewrite(const char *text, size_t len)
{
	auto_(job_fini) struct job j = JOB_EMPTY;
	const bool says_ended = record_says_ended(text, len);

	if (record_decode(&j, text, len, NULL) < 0)
		return NULL;
	const bool has_ended = j.state == JOB_EXITED || j.state == JOB_LOST;
	auto_json json_t *o = record_encode(&j);
	char *again = o ? json_dumps(o, 0) : NULL;
	if ((says_ended && !has_ended) ||
	    (again && record_says_ended(again, strlen(again)) != has_ended))
		abort();
	if (!again || j.dir || j.state >= JOB_STATE__MAX || !j.argv)
		abort();
	return again;
}
