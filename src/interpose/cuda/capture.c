// SPDX-License-Identifier: MIT
/*
 * Which streams are being captured into graphs. While one is, waiting for work is an error that may
 * end the capture: memory is then freed later, and the gate waits for its end.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "base/clock.h"
#include "interpose/core/backend.h"
#include "interpose/cuda/calls.h"

enum {
	STREAMS_MAX = 64,
	/* A thread that waits for work has long been in the driver by then, where the begin of a capture does not
	 * disturb it. To wait longer could be for ever: it may wait for what the beginning thread does next. */
	BEGIN_WAITS_MS = 100,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool has_clock; /* under the lock: @changed waits by the clock of deadlines */
static CUstream streams[STREAMS_MAX];
static atomic_uint n_streams; /* changed with the lock; beyond the table they count, unnamed */
static unsigned int n_begins,
	n_waits; /* under the lock: threads about to begin one, and threads that wait for work */

bool capture_active(void)
{
	return atomic_load(&n_streams);
}

static void capture_begun(CUstream stream)
{
	pthread_mutex_lock(&lock);
	if (n_streams < STREAMS_MAX)
		streams[n_streams] = stream;
	n_streams++;
	pthread_mutex_unlock(&lock);
}

static void capture_finished(CUstream stream)
{
	pthread_mutex_lock(&lock);
	unsigned int n = n_streams < STREAMS_MAX ? n_streams : STREAMS_MAX;
	unsigned int at = 0;

	while (at < n && streams[at] != stream)
		at++;
	if (at < n || n_streams > STREAMS_MAX) {
		if (at < n)
			streams[at] = streams[n - 1];
		n_streams--;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
}

bool capture_forbid(void)
{
	bool none;

	pthread_mutex_lock(&lock);
	none = !n_streams && !n_begins;
	n_waits += none;
	pthread_mutex_unlock(&lock);
	return none;
}

void capture_permit(void)
{
	pthread_mutex_lock(&lock);
	if (!--n_waits)
		pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* With the lock held. Older glibcs do not take the clock with each wait, so the first wait sets the condition's. */
static int wait_for_change(const struct timespec *until)
{
	if (!has_clock)
		condition_init(&changed);
	has_clock = true;
	return pthread_cond_timedwait(&changed, &lock, until);
}

int capture_wait(uint64_t deadline_ns)
{
	struct timespec until = deadline_timespec(deadline_ns);
	int r = 0;

	pthread_mutex_lock(&lock);
	while (n_streams && !r)
		r = wait_for_change(&until);
	pthread_mutex_unlock(&lock);
	return -r;
}

void capture_forget(void)
{
	pthread_mutex_init(&lock, NULL);
	pthread_cond_init(&changed, NULL);
	has_clock = false;
	n_streams = n_begins = n_waits = 0;
}

int capture_relax(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (!driver.cuThreadExchangeStreamCaptureMode ||
	    driver.cuThreadExchangeStreamCaptureMode(&mode))
		return CU_STREAM_CAPTURE_MODE_RELAXED;
	return (int)mode;
}

void capture_restore(int before)
{
	CUstreamCaptureMode mode = (CUstreamCaptureMode)before;

	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		driver.cuThreadExchangeStreamCaptureMode(&mode);
}

const char *backend_why_busy(void)
{
	return capture_active() ? "a stream is being captured into a CUDA graph"
				: "a thread is still in a call of the CUDA driver";
}

/* Nobody begins to wait from here on. */
static void before_begin(void)
{
	struct timespec until = deadline_timespec(deadline_in_ms(BEGIN_WAITS_MS));

	pthread_mutex_lock(&lock);
	n_begins++;
	while (n_waits && !wait_for_change(&until))
		;
	pthread_mutex_unlock(&lock);
}

/* What is captured from here on, if the call that began it went well. */
static CUresult after_begin(CUresult r, CUstream stream)
{
	if (!r)
		capture_begun(stream);
	pthread_mutex_lock(&lock);
	n_begins--;
	pthread_mutex_unlock(&lock);
	return r;
}

/* A capture that became invalid is over as well. */
static CUresult after_end(CUresult r, CUstream stream)
{
	if (r != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD && r != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED)
		capture_finished(stream);
	return r;
}

#define BEGIN(name, entry, params, args)                       \
	CUresult name params                                   \
	{                                                      \
		before_begin();                                \
		return after_begin(driver.entry args, stream); \
	}
#define END(name, entry)                                               \
	CUresult name(CUstream stream, CUgraph *graph)                 \
	{                                                              \
		return after_end(driver.entry(stream, graph), stream); \
	}
#define TO_GRAPH                                                                     \
	(CUstream stream, CUgraph graph, const CUgraphNode *deps, const void *edges, \
	 size_t n_deps, CUstreamCaptureMode mode)

BEGIN(capture_begin_old, cuStreamBeginCapture, (CUstream stream), (stream))
BEGIN(capture_begin_old_ptsz, cuStreamBeginCapture_ptsz, (CUstream stream), (stream))
BEGIN(capture_begin, cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
      (stream, mode))
BEGIN(capture_begin_ptsz, cuStreamBeginCapture_v2_ptsz, (CUstream stream, CUstreamCaptureMode mode),
      (stream, mode))
BEGIN(capture_begin_to_graph, cuStreamBeginCaptureToGraph, TO_GRAPH,
      (stream, graph, deps, edges, n_deps, mode))
BEGIN(capture_begin_to_graph_ptsz, cuStreamBeginCaptureToGraph_ptsz, TO_GRAPH,
      (stream, graph, deps, edges, n_deps, mode))
END(capture_end, cuStreamEndCapture)
END(capture_end_ptsz, cuStreamEndCapture_ptsz)

CUresult capture_stream_destroyed(CUstream stream)
{
	CUresult r = driver.cuStreamDestroy_v2(stream);

	if (!r && capture_active())
		capture_finished(stream);
	return r;
}
