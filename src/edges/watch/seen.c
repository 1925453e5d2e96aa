// SPDX-License-Identifier: MIT
/* See seen.h. No broker is started for who only looks. */
#include "edges/watch/seen.h"

#include <stdlib.h>

#include "base/cleanup.h"

enum { PATIENCE_MS = 1000 };

struct broker_info *broker_seen(bool simulated)
{
	auto_(broker_client_close) struct broker_client b = BROKER_CLIENT_EMPTY;
	auto_free struct broker_info *info = calloc(1, sizeof(*info));
	const struct gpu_kind kind = gpu_kind_here(simulated);

	if (!info || broker_client_find(&b, &kind, PATIENCE_MS, NULL) < 0 ||
	    broker_client_info(&b, info, NULL) < 0)
		return NULL;
	return take_ptr(&info);
}
