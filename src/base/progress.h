// SPDX-License-Identifier: MIT
/*
 * The progress of an operation: whether it may continue, what it is doing, and what was measured. It belongs to the
 * thread that runs the operation. A ticker thread of its own samples it for watchers and asks the caller whether to
 * stop; any thread may call progress_check().
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { PROGRESS_PHASES_MAX = 32, PROGRESS_NAME_BYTES = 64 };

/** The state of an operation, for watchers. */
struct progress_sample {
	size_t step, n_steps;		 /* steps count from 1 */
	const char *phase, *waiting_for; /* never NULL */
	uint64_t bytes, total_bytes;	 /* done in this phase, and its total; 0: unknown */
	double seconds;			 /* since the phase began */
};

/** The functions by which the caller of an operation watches and stops it. */
struct progress_caller {
	void *arg;
	/* Called from the ticker thread; may be NULL. */
	void (*show)(void *arg, const struct progress_sample *sample);
	bool (*is_cancelled)(void *arg); /* called from any thread; may be NULL */
	/* Called from the ticker thread, once, with the failure of an operation that may take arbitrarily long to
	 * end; may be NULL. */
	void (*fail)(void *arg, const struct brumate_error *why);
};

/** A measured part of an operation. Phases may overlap. */
struct progress_phase {
	char name[PROGRESS_NAME_BYTES];
	double start, seconds; /* start: since the operation began */
};

/** Returns how many bytes of the present phase are done. Called by the ticker thread. */
typedef uint64_t (*progress_measure_fn)(void *arg);

struct progress {
	struct progress_caller caller;
	uint32_t timeout_ms; /* of the whole operation; 0: none */
	uint64_t start_ns, deadline_ns;
	uint64_t stopped_ns, released_ns; /* when the job was stopped, and released; 0: not yet */
	uint64_t
		drained_ns; /* until when its memory was copied while it ran; 0: it was not, or not yet */
	struct progress_phase phases[PROGRESS_PHASES_MAX];
	size_t n_phases;
	char **notes; /* for the user */
	size_t n_notes;
	atomic_bool cancelled, settled;
	_Atomic(const char *)
		waited_for; /* the last that was no nothing, borrowed; NULL: nothing */

	/* under the lock: what the ticker samples */
	pthread_mutex_t lock;
	size_t step, n_steps;
	const char *phase, *waiting_for;
	uint64_t phase_start_ns, done_bytes, total_bytes;
	struct brumate_error failure; /* not yet reported to the caller; code 0: none */
	progress_measure_fn measure;  /* replaces done_bytes; may be NULL */
	void *measure_arg;
	pthread_t ticker;
	pthread_cond_t stop;
	enum { TICKER_NONE, TICKER_TICKS, TICKER_ENDS } ticking;
	bool has_failed;
};

/** Starts the clock of an operation with the limit @timeout_ms (0: none). @caller: NULL: nobody. */
void progress_init(struct progress *p, const struct progress_caller *caller, uint32_t timeout_ms);
void progress_fini(struct progress *p);

/** Fails with -ECANCELED or -ETIMEDOUT once the caller has cancelled or the deadline has passed; -ETIMEDOUT says what the
 * operation waited for. */
int progress_check(struct progress *p, struct brumate_error *err);

/** Puts before @err, of an operation that timed out, that it did and what it waited for, unless @err says so. */
void progress_say_late(const struct progress *p, struct brumate_error *err);

/** The operation has achieved its purpose, and only its end is left: progress_check() does not fail any more. */
void progress_settle(struct progress *p);

/** Reports that the operation has failed to the caller at once, as it may take arbitrarily long to end. Only the
 * first call counts. */
void progress_fail(struct progress *p, const struct brumate_error *why);

/** Whether progress_check() fails, as a function of a void pointer. @progress: struct progress. */
bool progress_is_over(void *progress);

/** Milliseconds left until the deadline; @otherwise_ms if the operation has none. */
uint32_t progress_left_ms(const struct progress *p, uint32_t otherwise_ms);

/** Adds a note for the user. Does nothing if @p is NULL. */
void progress_note(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/** Appends a phase that began at @start_ns and has just ended. */
void progress_phase(struct progress *p, const char *name, uint64_t start_ns);
/** Appends a phase that began at @start_ns and lasted @seconds. */
void progress_phase_at(struct progress *p, const char *name, uint64_t start_ns, double seconds);

/* ---- what the ticker shows ---- */

/** Starts the ticker for an operation of @n_steps steps. If there is no thread for it, nothing is shown. */
void progress_start(struct progress *p, size_t n_steps);
void progress_stop(struct progress *p);

/** Begins step @step (from 0), which is called @phase and waits for @waiting_for. Both strings are borrowed. Resets
 * the measured progress. */
void progress_step(struct progress *p, size_t step, const char *phase, const char *waiting_for);

/** The step waits for something else from now on. */
void progress_wait_for(struct progress *p, const char *waiting_for);

/** Sets @measure as the source of this step's progress, out of @total_bytes; NULL: unknown. After the return, the
 * previous function is not running. */
void progress_measure(struct progress *p, progress_measure_fn measure, void *arg,
		      uint64_t total_bytes);

/** Sets the progress of this step: @done_bytes of @total_bytes. From any thread. */
void progress_done(struct progress *p, uint64_t done_bytes, uint64_t total_bytes);
