// SPDX-License-Identifier: MIT
#include "job/standstill.h"

#include <signal.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "process/process.h"

static void continue_members(const struct job *job, bool goes_first)
{
	for (size_t i = job->n_stopped; i-- > 0;)
		if (job->stopped[i].goes_first == goes_first)
			proc_signal_as(job->stopped[i].id, SIGCONT, job->uid);
}

void standstill_wake_first(const struct job *job)
{
	continue_members(job, true);
}

void standstill_wake(const struct job *job)
{
	continue_members(job, true);
	continue_members(job, false);
}

void standstill_end(struct job *job)
{
	standstill_wake(job);
	free(take_ptr(&job->stopped));
	job->n_stopped = 0;
}
