// SPDX-License-Identifier: MIT
/* What the file of a job of the simulated driver holds: job_file.c, and the tool that makes it. */
#pragma once

#include <stdint.h>

#define JOB_FILE_MAGIC "SimJob1"

struct sim_job_file {
	char magic[8];
	uint64_t identity; /* not 0 */
	uint64_t saves;	   /* by checkpoints of members so far */
};
