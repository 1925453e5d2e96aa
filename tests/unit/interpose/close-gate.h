// SPDX-License-Identifier: MIT
/* Closes the gate and waits until nobody is inside, as a closer does that waits for nothing else. */
#pragma once

#include <errno.h>

#include "base/clock.h"
#include "interpose/core/gate.h"

static inline int close_gate(uint64_t deadline_ns)
{
	int r = gate_close();

	while (!r) {
		unsigned int seen = gate_changes();

		if (gate_is_empty())
			return 0;
		if (clock_now_ns() >= deadline_ns)
			r = -ETIMEDOUT;
		else
			gate_wait(seen, deadline_ns);
	}
	if (r == -ETIMEDOUT)
		gate_open();
	return r;
}
