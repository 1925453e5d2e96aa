// SPDX-License-Identifier: MIT
/* Progress; see meter.h. */
#include "service/meter.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"

enum { TELL_MS = 200 };

bool call_is_cancelled(const struct service_call *call)
{
	struct pollfd fds[CANCEL_FDS];

	memcpy(fds, call->cancel.fds, sizeof(fds));
	return poll(fds, CANCEL_FDS, 0) > 0;
}

struct meter meter_of(const struct service_call *call, const char *phase, int steps)
{
	return (struct meter){ .call = call, .phase = phase, .steps = steps };
}

void meter_step(struct meter *m)
{
	m->step++;
	m->start_ns = clock_now_ns();
	m->told_ns = 0;
}

int meter_progress(void *arg, uint64_t done_bytes, uint64_t total_bytes)
{
	struct meter *m = arg;
	uint64_t now_ns = clock_now_ns();

	if (m->told_ns && now_ns - m->told_ns < TELL_MS * NS_PER_MS)
		return 0;
	m->told_ns = now_ns;
	if (call_is_cancelled(m->call))
		return -ECANCELED;
	if (!m->call->on_reply)
		return 0;
	auto_json json_t *reply = json_pack(
		"{s:{s:i,s:i,s:s,s:s,s:I,s:I,s:f}}", "progress", "step", m->step, "steps", m->steps,
		"phase", m->phase, "waiting_for", "", "bytes", (json_int_t)done_bytes,
		"total_bytes", (json_int_t)total_bytes, "seconds", clock_since_s(m->start_ns));
	if (reply)
		m->call->on_reply(m->call->arg, reply);
	return 0;
}
