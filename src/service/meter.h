// SPDX-License-Identifier: MIT
/* Progress of what the service does itself, as the type Progress of io.brumate. */
#pragma once

#include "service/service.h"
#include "store/store.h"

struct meter {
	const struct service_call *call;
	const char *phase;
	int step, steps;
	uint64_t start_ns, told_ns;
};

/** A meter of @steps steps, before the first. @phase: a literal. */
struct meter meter_of(const struct service_call *call, const char *phase, int steps);

/** The next step begins. */
void meter_step(struct meter *m);

/** A store_progress_fn: tells the caller now and then; -ECANCELED once the call is cancelled. */
int meter_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes);

/** True once the call is cancelled. */
bool call_is_cancelled(const struct service_call *call);
