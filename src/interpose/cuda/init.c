// SPDX-License-Identifier: MIT
/*
 * The process: whether this library is to do anything at all, and the start of the agent. There is
 * no constructor: other libraries' constructors may use the driver before one of ours had run.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "interpose/cuda/entry.h"
#include "interpose/cuda/interpose.h"

enum { UNKNOWN, ON, OFF };

static int read_environment(atomic_int *mode)
{
	const char *value = getenv("BRUMATE_INTERPOSE");
	int found = value && !strcmp(value, "off") ? OFF : ON, unknown = UNKNOWN;

	/* The first answer stays: a program may change its environment. */
	atomic_compare_exchange_strong(mode, &unknown, found);
	return atomic_load(mode);
}

bool init_is_off(void)
{
	static atomic_int mode;
	int known = atomic_load_explicit(&mode, memory_order_relaxed);

	return (known == UNKNOWN ? read_environment(&mode) : known) == OFF;
}

/* In the child of a fork the tables describe memory of the parent's. */
static void watch_forks(void)
{
	static atomic_bool watching;

	if (!atomic_exchange(&watching, true))
		pthread_atfork(NULL, NULL, memory_forget);
}

CUresult init_driver(unsigned int flags)
{
	CUresult r = driver.cuInit(flags);

	if (r == CUDA_SUCCESS) {
		watch_forks();
		agent_start();
	}
	return r;
}
