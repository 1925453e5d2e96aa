// SPDX-License-Identifier: MIT
#include "job/standstill.h"

#include <signal.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "process/process.h"

static void continue_members(const struct target *t, bool goes_first)
{
	for (size_t i = t->n_stopped; i-- > 0;)
		if (t->stopped[i].goes_first == goes_first)
			proc_signal_as(t->stopped[i].id, SIGCONT, t->uid);
}

void standstill_wake_first(const struct target *t)
{
	continue_members(t, true);
}

void standstill_wake(const struct target *t)
{
	continue_members(t, true);
	continue_members(t, false);
}

void standstill_end(struct target *t)
{
	standstill_wake(t);
	free(take_ptr(&t->stopped));
	t->n_stopped = 0;
}
