// SPDX-License-Identifier: MIT
/* The progress of an operation. See progress.h. */
#include "base/progress.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/thread.h"

enum { LATE_BYTES_MAX = 200, TICK_MS = 200, NOTE_BYTES_MAX = 512 };

void progress_init(struct progress *p, const struct progress_caller *caller, uint32_t timeout_ms)
{
	*p = (struct progress){
		.caller = caller ? *caller : (struct progress_caller){ 0 },
		.timeout_ms = timeout_ms,
		.start_ns = clock_now_ns(),
		.deadline_ns = timeout_ms ? deadline_in_ms(timeout_ms) : DEADLINE_NEVER,
	};
	pthread_mutex_init(&p->lock, NULL);
	condition_init(&p->stop);
}

void progress_fini(struct progress *p)
{
	for (size_t i = 0; i < p->n_notes; i++)
		free(p->notes[i]);
	free(p->notes);
	p->notes = NULL;
	p->n_notes = 0;
	pthread_mutex_destroy(&p->lock);
	pthread_cond_destroy(&p->stop);
}

/* "timed out after 1 s: it waited for the driver" */
static void format_late(const struct progress *p, char *ret, size_t size)
{
	const bool is_short = p->timeout_ms < 1000;
	const char *waited_for = p->waited_for;

	snprintf(ret, size, "timed out after %g %s%s%s",
		 is_short ? p->timeout_ms : p->timeout_ms / 1000.0, is_short ? "ms" : "s",
		 waited_for ? ": it waited for " : "", waited_for ? waited_for : "");
}

static bool ends_in(const char *text, const char *end)
{
	const size_t len = strlen(text), n = strlen(end);

	return len >= n && !strcmp(text + len - n, end);
}

void progress_say_late(const struct progress *p, struct brumate_error *err)
{
	char late[LATE_BYTES_MAX];

	if (!err || strstr(err->text, "timed out after"))
		return;
	format_late(p, late, sizeof(late));
	if (ends_in(err->text, "cancelled")) /* by the end of the time, which is the cause */
		snprintf(err->text, sizeof(err->text), "%s", late);
	else
		brumate_wrap(err, -err->code, "%s", late);
}

int progress_check(struct progress *p, struct brumate_error *err)
{
	char late[LATE_BYTES_MAX];

	if (p->settled)
		return 0;
	if (!p->cancelled && p->caller.is_cancelled && p->caller.is_cancelled(p->caller.arg))
		p->cancelled = true;
	if (p->cancelled)
		return brumate_fail(err, ECANCELED, "cancelled");
	if (deadline_left_ms(p->deadline_ns) == 0) {
		format_late(p, late, sizeof(late));
		brumate_fail(err, ETIMEDOUT, "%s", late);
		brumate_hint(err, "a longer --timeout gives it more time");
		return -ETIMEDOUT;
	}
	return 0;
}

void progress_settle(struct progress *p)
{
	p->settled = true;
}

void progress_fail(struct progress *p, const struct brumate_error *why)
{
	pthread_mutex_lock(&p->lock);
	if (!p->has_failed)
		p->failure = *why;
	p->has_failed = true;
	pthread_mutex_unlock(&p->lock);
}

bool progress_is_over(void *progress)
{
	return progress_check(progress, NULL) < 0;
}

uint32_t progress_left_ms(const struct progress *p, uint32_t otherwise_ms)
{
	int left_ms = deadline_left_ms(p->deadline_ns);

	return left_ms >= 0 ? (uint32_t)left_ms : otherwise_ms;
}

void progress_note(struct progress *p, const char *fmt, ...)
{
	char text[NOTE_BYTES_MAX];
	va_list ap;

	if (!p)
		return;
	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	char *note = strdup(text);
	if (note && array_add(p->notes, p->n_notes, note) < 0)
		free(note);
}

void progress_phase_at(struct progress *p, const char *name, uint64_t start_ns, double seconds)
{
	if (p->n_phases == PROGRESS_PHASES_MAX)
		return;
	struct progress_phase *phase = &p->phases[p->n_phases++];
	double start = (double)(start_ns - p->start_ns) / (double)NS_PER_S;

	phase->start = start_ns > p->start_ns ? start : 0;
	phase->seconds = seconds;
	snprintf(phase->name, sizeof(phase->name), "%s", name);
}

void progress_phase(struct progress *p, const char *name, uint64_t start_ns)
{
	progress_phase_at(p, name, start_ns, clock_since_s(start_ns));
}

/* ---- what the ticker shows ---- */

/* The caller holds the lock. */
static struct progress_sample take_sample(const struct progress *p)
{
	uint64_t bytes = p->measure ? p->measure(p->measure_arg) : p->done_bytes;
	uint64_t total = p->total_bytes;

	return (struct progress_sample){
		.step = p->step + 1,
		.n_steps = p->n_steps,
		.phase = p->phase ? p->phase : "",
		.waiting_for = p->waiting_for ? p->waiting_for : "",
		.bytes = total && bytes > total ? total : bytes,
		.total_bytes = total,
		.seconds = clock_since_s(p->phase_start_ns),
	};
}

static void *tick(void *arg)
{
	struct progress *p = arg;

	pthread_mutex_lock(&p->lock);
	while (p->ticking == TICKER_TICKS) {
		struct timespec until = deadline_timespec(deadline_in_ms(TICK_MS));

		if (pthread_cond_timedwait(&p->stop, &p->lock, &until) != ETIMEDOUT)
			continue;
		struct progress_sample sample = take_sample(p);
		struct brumate_error failure = p->failure;
		p->failure = BRUMATE_ERROR_NONE;
		pthread_mutex_unlock(&p->lock);
		if (p->caller.show)
			p->caller.show(p->caller.arg, &sample);
		if (failure.code && p->caller.fail)
			p->caller.fail(p->caller.arg, &failure);
		progress_check(p, NULL);
		pthread_mutex_lock(&p->lock);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

void progress_start(struct progress *p, size_t n_steps)
{
	p->n_steps = n_steps;
	p->ticking = TICKER_TICKS;
	if (thread_start(&p->ticker, tick, p) < 0)
		p->ticking = TICKER_NONE;
}

void progress_stop(struct progress *p)
{
	if (p->ticking == TICKER_NONE)
		return;
	pthread_mutex_lock(&p->lock);
	p->ticking = TICKER_ENDS;
	pthread_cond_signal(&p->stop);
	pthread_mutex_unlock(&p->lock);
	pthread_join(p->ticker, NULL);
	p->ticking = TICKER_NONE;
}

/* The caller holds the lock. */
static void set_waiting_for(struct progress *p, const char *what)
{
	p->waiting_for = what;
	if (what && *what && strcmp(what, "nothing") != 0 && strcmp(what, "undoing") != 0)
		p->waited_for = what;
}

void progress_step(struct progress *p, size_t step, const char *phase, const char *waiting_for)
{
	pthread_mutex_lock(&p->lock);
	p->step = step;
	p->phase = phase;
	set_waiting_for(p, waiting_for);
	p->phase_start_ns = clock_now_ns();
	p->measure = NULL;
	p->done_bytes = p->total_bytes = 0;
	pthread_mutex_unlock(&p->lock);
}

void progress_wait_for(struct progress *p, const char *waiting_for)
{
	pthread_mutex_lock(&p->lock);
	set_waiting_for(p, waiting_for);
	pthread_mutex_unlock(&p->lock);
}

void progress_measure(struct progress *p, progress_measure_fn measure, void *arg,
		      uint64_t total_bytes)
{
	pthread_mutex_lock(&p->lock);
	p->measure = measure;
	p->measure_arg = arg;
	p->done_bytes = 0;
	p->total_bytes = total_bytes;
	pthread_mutex_unlock(&p->lock);
}

void progress_done(struct progress *p, uint64_t done_bytes, uint64_t total_bytes)
{
	pthread_mutex_lock(&p->lock);
	p->done_bytes = done_bytes;
	p->total_bytes = total_bytes;
	pthread_mutex_unlock(&p->lock);
}
