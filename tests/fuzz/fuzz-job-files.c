// SPDX-License-Identifier: MIT
/* Records of a job's files: any bytes are decoded or refused, and what was decoded is written and read back the same. */
#include "engine/job-files.h"
#include "rewrite.h"

static char *rewrite(const char *text, size_t len)
{
	auto_(job_files_fini) struct job_files f = JOB_FILES_EMPTY;

	if (job_files_decode(&f, text, len, NULL) < 0)
		return NULL;
	for (size_t i = 0; i < f.n; i++)
		if (f.items[i].path[0] != '/' || f.items[i].mode > 07777 ||
		    f.items[i].seen.fd != -1)
			abort();
	char *again = job_files_encode(&f);
	if (!again)
		abort();
	return again;
}
