// SPDX-License-Identifier: MIT
/* Events: a place in a stream, when it was passed, and streams that wait for it. */
#include <stdlib.h>

#include "base/clock.h"
#include "sim.h"

static void event_put(CUevent event)
{
	if (--event->refs)
		return;
	if (event->stream)
		stream_put(event->stream);
	shared_event_fini(&event->shared);
	free(event);
}

static bool is_shared(CUevent event)
{
	return *event->shared.name;
}

static CUresult op_record(struct stream_op *op)
{
	CUevent event = op->event;

	pthread_mutex_lock(&sim.lock);
	/* Recorded again meanwhile: then this record is not asked about any more. */
	if (event->stream == op->stream && event->seq == op->seq)
		event->time_ns = clock_now_ns();
	if (is_shared(event))
		shared_event_pass(&event->shared, op->record);
	event_put(event);
	pthread_mutex_unlock(&sim.lock);
	return CUDA_SUCCESS;
}

/* Of a shared event, wherever it was recorded last. */
static CUresult op_wait_shared(struct stream_op *op)
{
	shared_event_wait(&op->event->shared, op->record);
	pthread_mutex_lock(&sim.lock);
	event_put(op->event);
	pthread_mutex_unlock(&sim.lock);
	return CUDA_SUCCESS;
}

static bool is_done(CUevent event)
{
	if (is_shared(event))
		return shared_event_is_done(&event->shared, shared_event_last(&event->shared));
	return !event->stream || event->stream->completed >= event->seq;
}

CUresult event_new(CUcontext ctx, CUevent *ret, unsigned int flags)
{
	CUevent event;

	event = calloc(1, sizeof(*event));
	if (!event || handle_add(&sim.events, event) < 0) {
		free(event);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	event->ctx = ctx;
	event->flags = flags;
	event->refs = 1;
	*ret = event;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext ctx, CUevent *ret, unsigned int flags)
{
	CUresult r;

	if (!ret || flags & ~7u ||
	    (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
		return CUDA_ERROR_INVALID_VALUE;
	r = event_new(ctx, ret, flags);
	if (!r && flags & CU_EVENT_INTERPROCESS) {
		r = shared_event_make(&(*ret)->shared);
		if (r) {
			handle_remove(&sim.events, *ret);
			event_put(*ret);
		}
	}
	return r;
}

static CUresult record(CUcontext ctx, CUevent event, CUstream handle)
{
	struct stream_op op = { .run = op_record, .event = event };
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);
	uint64_t seq;

	if (r)
		return r;
	if (!handle_valid(&sim.events, event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (stream->capture) {
		capture_record(stream, event);
		return CUDA_SUCCESS;
	}
	event->refs++;
	if (is_shared(event))
		op.record = shared_event_record(&event->shared);
	r = stream_submit(stream, &op, &seq);
	if (r) {
		if (is_shared(event)) /* or it would never be done */
			shared_event_pass(&event->shared, op.record);
		event->refs--;
		return r;
	}
	if (event->stream)
		stream_put(event->stream);
	stream->refs++;
	event->stream = stream;
	event->seq = seq;
	event->capture = NULL;
	return CUDA_SUCCESS;
}

static CUresult query(CUevent event)
{
	if (!handle_valid(&sim.events, event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	return is_done(event) ? event->ctx->error : CUDA_ERROR_NOT_READY;
}

/* Without the lock: what it waits for may be another stream's of this process. */
static void wait_shared(CUevent event)
{
	uint64_t last = shared_event_last(&event->shared);

	event->refs++;
	pthread_mutex_unlock(&sim.lock);
	shared_event_wait(&event->shared, last);
	pthread_mutex_lock(&sim.lock);
	event_put(event);
}

static CUresult synchronize(CUevent event)
{
	CUcontext ctx;

	if (!handle_valid(&sim.events, event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->capture)
		return CUDA_ERROR_CAPTURED_EVENT;
	ctx = event->ctx;
	if (is_shared(event))
		wait_shared(event);
	else if (event->stream)
		stream_wait(event->stream, event->seq);
	return ctx->error;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end)
{
	if (!ms)
		return CUDA_ERROR_INVALID_VALUE;
	if (!handle_valid(&sim.events, start) || !handle_valid(&sim.events, end) ||
	    !start->stream || !end->stream || (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!is_done(start) || !is_done(end))
		return CUDA_ERROR_NOT_READY;
	*ms = (float)((double)(int64_t)(end->time_ns - start->time_ns) / NS_PER_MS);
	return CUDA_SUCCESS;
}

static CUresult destroy(CUevent event)
{
	if (!handle_remove(&sim.events, event))
		return CUDA_ERROR_INVALID_HANDLE;
	event_put(event);
	return CUDA_SUCCESS;
}

static CUresult wait_event_of_all(CUstream stream, CUevent event)
{
	struct stream_op op = { .run = op_wait_shared,
				.event = event,
				.record = shared_event_last(&event->shared) };
	CUresult r;

	event->refs++;
	r = stream_submit(stream, &op, NULL);
	if (r)
		event_put(event);
	return r;
}

static CUresult wait_event(CUcontext ctx, CUstream handle, CUevent event)
{
	struct stream_op nothing = { .run = op_nothing };
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (!handle_valid(&sim.events, event))
		return CUDA_ERROR_INVALID_HANDLE;
	if (event->capture)
		return capture_join(stream, event);
	if (stream->capture)
		return event->stream ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_SUCCESS;
	if (is_done(event))
		return CUDA_SUCCESS;
	if (is_shared(event))
		return wait_event_of_all(stream, event);
	return stream_submit_after(stream, &nothing, event->stream, event->seq);
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
	return API_CTX_LOCKED(create(ctx, event, flags));
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
	return API_CTX_LOCKED(record(ctx, event, stream));
}

CUresult cuEventQuery(CUevent event)
{
	return API_LOCKED(query(event));
}

CUresult cuEventSynchronize(CUevent event)
{
	return API_LOCKED(synchronize(event));
}

CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end)
{
	return API_LOCKED(elapsed(ms, start, end));
}

CUresult cuEventDestroy_v2(CUevent event)
{
	return API_LOCKED(destroy(event));
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
	return API_CTX_LOCKED(wait_event(ctx, stream, event));
}
