// SPDX-License-Identifier: MIT
/* What the methods of io.brumate share: finding one by its name, cancellation, progress. */
#include "service/service.h"
#include "service/audit.h"

#include <errno.h>
#include <string.h>

#include "base/clock.h"

static const struct {
	const char *name;
	service_method_fn run;
} methods[] = {
#define X(name, fn) { #name, fn },
	SERVICE_METHODS(X)
#undef X
};

int service_call(const char *method, const struct service_call *call, json_t *parameters,
		 json_t **ret, struct brumate_error *err)
{
	auto_json json_t *given = parameters ? json_incref(parameters) : json_object();

	if (!given)
		return brumate_fail(err, ENOMEM, "%s: %m", method);
	for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
		json_t *reply = NULL;

		if (strcmp(methods[i].name, method))
			continue;
		int r = methods[i].run(call, given, &reply, err);
		audit_write(method, &(struct audit_caller){ call->uid, call->pid, call->fd }, given,
			    r < 0 ? NULL : reply, r);
		if (ret && r == 0)
			*ret = take_ptr(&reply);
		json_decref(reply);
		return r;
	}
	return brumate_fail(err, EOPNOTSUPP, "no method %s", method);
}

/* ---- cancellation and progress ---- */

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
