// SPDX-License-Identifier: MIT
/*
 * What is seen of jobs beside their records: their processes and the memory of these, on which GPUs they are, what they
 * need again. /proc is read and, where there is a broker, the broker is asked, for all jobs in one call. It starts none.
 */
#pragma once

#include <jansson.h>

#include "job/job.h"

/** GPU processes whose GPUs are to be asked for, each with the Job that it belongs to. */
struct look {
	struct looked *items;
	size_t n;
};
#define LOOK_EMPTY ((struct look){ 0 })
void look_fini(struct look *l);
DEFINE_AUTO_FINI(struct look, look_fini)

/** Adds to @o, the Job of @j, gpu_processes, host_bytes, needs and last_checkpoint; and gpus, as far as they need not be
 * asked for: null is not known. 0 or -ENOMEM. */
int look_at_job(struct look *l, json_t *o, const struct job *j);

/** Asks the brokers that are there, and adds what they say to the gpus of all jobs looked at. What they cannot tell, or do
 * not at once, stays null. */
void look_ask_brokers(struct look *l);

/** The processes of the job, as the type JobProcess of io.brumate (owned). NULL where they cannot be read. */
json_t *look_processes(const struct job *j);

/** The files that they have open, as the type JobFile of io.brumate (owned), each once. NULL where they cannot be read. */
json_t *look_files(const struct job *j);
