// SPDX-License-Identifier: MIT
/* Shared by the methods of io.brumate: finding a method by its name, cancellation, progress, calls to other programs. */
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
#include "base/fd.h"
#include "base/machine.h"
#include "base/thread.h"
#include "process/process.h"

static const struct {
	const char *name;
	service_method_fn run;
} methods[] = {
#define X(name, fn) { #name, fn },
	SERVICE_METHODS(X)
#undef X
};

static bool only_looks;

void service_only_looks(void)
{
	only_looks = true;
}

bool service_may_put_right(void)
{
	return !only_looks;
}

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
		if (service_may_put_right())
			groups_put_right(call);
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
 * ---- calls to other programs of ours, which can be cancelled while they wait ----
 *
 * The calling thread waits in wire_call(). A second one waits for the cancellation and for the deadline, and checks
 * whether the other program is stopped by a signal or in a frozen cgroup, which nothing else would report. Then it
 * shuts the connection down, which ends the wait of the first thread.
 */

enum {
	LOOK_MS = 250,
	STILL_MS = 2000, /* then a query of a stopped program is given up */
	STILL_AT_WORK_MS =
		10000, /* then an operation is, which the other program undoes when it continues */
	SPARE_MS = 1000, /* for the other program to report the timeout itself */
};

enum relay_end { RELAY_WAITS, RELAY_CANCELLED, RELAY_STANDS_STILL, RELAY_TIMED_OUT };

struct relay {
	const struct cancel *cancel;
	int done_fd;
	int wire_fd;
	struct proc_id peer;
	uint32_t timeout_ms; /* of the operation; 0: none */
	uint32_t
		still_ms; /* limit for the other program being stopped if there is no timeout; 0: none */
	uint64_t start_ns, still_since_ns;
	_Atomic enum relay_end end;
	/* what the operation last reported to wait for, and where replies go */
	char waiting_for[128];
	wire_reply_fn on_reply;
	void *arg;
};

static bool is_cancelled(const struct pollfd *fds)
{
	for (int i = 0; i < CANCEL_FDS; i++)
		if (fds[i].revents)
			return true;
	return false;
}

static bool stands_still(struct proc_id id)
{
	return proc_has_stopped(id) == 1 || machine_is_frozen(id.pid);
}

/* Why the wait has to end, other than the caller's cancellation; RELAY_WAITS: it continues. */
static enum relay_end look_at_peer(struct relay *w)
{
	uint64_t now_ns = clock_now_ns();

	if (w->timeout_ms)
		return now_ns - w->start_ns > (w->timeout_ms + SPARE_MS) * NS_PER_MS
			       ? RELAY_TIMED_OUT
			       : RELAY_WAITS;
	if (!w->still_ms)
		return RELAY_WAITS;
	if (!w->peer.pid || !stands_still(w->peer) || proc_has_ended(w->peer))
		w->still_since_ns = 0;
	else if (!w->still_since_ns)
		w->still_since_ns = now_ns;
	return w->still_since_ns && now_ns - w->still_since_ns > w->still_ms * NS_PER_MS
		       ? RELAY_STANDS_STILL
		       : RELAY_WAITS;
}

/* A call without limits needs no checks between events. */
static int look_every_ms(const struct relay *w)
{
	return w->timeout_ms || w->still_ms ? LOOK_MS : -1;
}

static void *watch_peer(void *arg)
{
	struct relay *w = arg;
	enum relay_end end = RELAY_WAITS;
	struct pollfd fds[CANCEL_FDS + 1];

	for (int i = 0; i < CANCEL_FDS; i++)
		fds[i] = w->cancel->fds[i];
	fds[CANCEL_FDS] = (struct pollfd){ .fd = w->done_fd, .events = POLLIN };

	while (end == RELAY_WAITS) {
		int n = poll(fds, CANCEL_FDS + 1, look_every_ms(w));

		if (n < 0 && errno != EINTR)
			return NULL;
		if (n > 0 && fds[CANCEL_FDS].revents)
			return NULL;
		end = n > 0 && is_cancelled(fds) ? RELAY_CANCELLED : look_at_peer(w);
	}
	atomic_store(&w->end, end);
	shutdown(w->wire_fd, SHUT_RDWR);
	return NULL;
}

/* Keeps what the operation waits for, and passes the reply on. */
static void note_reply(void *arg, json_t *reply)
{
	struct relay *w = arg;
	const char *text = json_string_value(
		json_object_get(json_object_get(reply, "progress"), "waiting_for"));

	if (text)
		snprintf(w->waiting_for, sizeof(w->waiting_for), "%s", text);
	w->on_reply(w->arg, reply);
}

static int fail_still(const struct relay *w, struct brumate_error *err)
{
	const char *program = "the program that was asked";
	auto_free char *comm = NULL;

	if (proc_file_read(w->peer.pid, "comm", 64, &comm, NULL) == 0) {
		comm[strcspn(comm, "\n")] = '\0';
		program = comm;
	}
	const bool frozen = machine_is_frozen(w->peer.pid);
	brumate_fail(err, EHOSTDOWN, "%s (process %d) %s, so it does not answer", program,
		     w->peer.pid, frozen ? "is frozen with its cgroup" : "was stopped by a signal");
	brumate_error_exit(err, EXIT_FROZEN);
	if (frozen)
		brumate_hint(err, "thaw the cgroup that is named in /proc/%d/cgroup", w->peer.pid);
	else
		brumate_hint(err, "kill -CONT %d lets it go on", w->peer.pid);
	return -EHOSTDOWN;
}

static int fail_timed_out(const struct relay *w, struct brumate_error *err)
{
	struct brumate_error why = BRUMATE_ERROR_NONE;

	if (stands_still(w->peer))
		fail_still(w, &why);
	else
		brumate_fail(&why, ETIMEDOUT, "process %d does not answer%s%s", w->peer.pid,
			     *w->waiting_for ? "; it waited for " : "", w->waiting_for);
	const bool is_short = w->timeout_ms < 1000;
	brumate_fail(err, ETIMEDOUT, "timed out after %g %s: %s",
		     is_short ? w->timeout_ms : w->timeout_ms / 1000.0, is_short ? "ms" : "s",
		     why.text);
	brumate_hint(err,
		     "%s%swhat it began is taken back; `brumate ps` says what became of the job",
		     why.hint, *why.hint ? "; " : "");
	return -ETIMEDOUT;
}

int relay_call(struct wire *w, const char *method, json_t *parameters,
	       const struct service_call *call, uint32_t still_ms, json_t **ret,
	       struct brumate_error *err)
{
	auto_close int done_fd = eventfd(0, EFD_CLOEXEC);
	struct relay state = {
		.cancel = &call->cancel,
		.done_fd = done_fd,
		.wire_fd = w->fd,
		.timeout_ms =
			(uint32_t)json_integer_value(json_object_get(parameters, "timeout_ms")),
		.still_ms = still_ms,
		.start_ns = clock_now_ns(),
		.on_reply = call->on_reply,
		.arg = call->arg,
	};
	struct ucred peer;
	pthread_t thread;

	if (done_fd < 0)
		return brumate_fail(err, errno, "eventfd: %m");
	if (fd_peer(w->fd, &peer) == 0 && peer.pid)
		proc_identify(&state.peer, peer.pid, NULL);
	int r = thread_start(&thread, watch_peer, &state);
	if (r < 0)
		return brumate_fail(err, -r, "%s: thread: %m", method);

	r = wire_call(w, method, parameters, call->sockets, call->n_sockets,
		      call->on_reply ? note_reply : NULL, &state, ret, DEADLINE_NEVER, err);
	eventfd_write(done_fd, 1);
	pthread_join(thread, NULL);
	if (r >= 0)
		return r;
	switch (atomic_load(&state.end)) {
	case RELAY_CANCELLED:
		return brumate_fail(err, ECANCELED, "cancelled");
	case RELAY_STANDS_STILL:
		return fail_still(&state, err);
	case RELAY_TIMED_OUT:
		return fail_timed_out(&state, err);
	default:
		return r;
	}
}
