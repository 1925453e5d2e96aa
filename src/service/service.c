// SPDX-License-Identifier: MIT
/* What the methods of io.brumate share: finding one by its name, cancellation, progress, calls to other programs. */
#include "service/service.h"
#include "service/audit.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/thread.h"

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

int service_answer(json_t **ret, struct brumate_error *err, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	*ret = json_vpack_ex(NULL, 0, fmt, ap);
	va_end(ap);
	return *ret ? 0 : brumate_fail(err, ENOMEM, "%m");
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

/*
 * ---- calls to another of our programs that somebody else may cancel while they wait ----
 *
 * The calling thread waits in wire_call(); a second one waits for the cancellation and then shuts the
 * connection down, which ends the first one's wait.
 */

struct watch {
	const struct cancel *cancel;
	int done_fd;
	int wire_fd;
	atomic_bool cancelled;
};

static bool is_cancelled(const struct pollfd *fds)
{
	for (int i = 0; i < CANCEL_FDS; i++)
		if (fds[i].revents)
			return true;
	return false;
}

static void *watch(void *arg)
{
	struct watch *w = arg;
	struct pollfd fds[CANCEL_FDS + 1];

	for (int i = 0; i < CANCEL_FDS; i++)
		fds[i] = w->cancel->fds[i];
	fds[CANCEL_FDS] = (struct pollfd){ .fd = w->done_fd, .events = POLLIN };

	while (poll(fds, CANCEL_FDS + 1, -1) < 0)
		if (errno != EINTR)
			return NULL;
	if (is_cancelled(fds)) {
		atomic_store(&w->cancelled, true);
		shutdown(w->wire_fd, SHUT_RDWR);
	}
	return NULL;
}

int relay_call(struct wire *w, const char *method, json_t *parameters, wire_reply_fn on_reply,
	       void *arg, const struct cancel *cancel, json_t **ret, struct brumate_error *err)
{
	auto_close int done_fd = eventfd(0, EFD_CLOEXEC);
	struct watch state = { .cancel = cancel, .done_fd = done_fd, .wire_fd = w->fd };
	pthread_t thread;

	if (done_fd < 0)
		return brumate_fail(err, errno, "eventfd: %m");
	int r = thread_start(&thread, watch, &state);
	if (r < 0)
		return brumate_fail(err, -r, "%s: thread: %m", method);

	r = wire_call(w, method, parameters, NULL, 0, on_reply, arg, ret, DEADLINE_NEVER, err);
	eventfd_write(done_fd, 1);
	pthread_join(thread, NULL);
	if (r < 0 && atomic_load(&state.cancelled))
		return brumate_fail(err, ECANCELED, "cancelled");
	return r;
}
