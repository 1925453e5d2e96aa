// SPDX-License-Identifier: MIT
/*
 * Capture of streams into a graph. The order of capture is an order in which the graph may run, so
 * a captured graph is the list of its operations. Streams join a capture by waiting for an event of
 * it, and must have been waited for when it ends.
 */
#include <stdlib.h>

#include "sim.h"

enum { MEMBERS_MAX = 32 };

struct capture {
	CUgraph graph;
	CUstream origin;
	CUstreamCaptureMode mode;
	pthread_t thread;
	bool invalid;
	struct member {
		CUstream stream;
		uint64_t pos, joined; /* operations captured, and waited for by another member */
	} members[MEMBERS_MAX];
	size_t n_members;
};

static struct member *member_of(struct capture *capture, CUstream stream)
{
	for (size_t i = 0; i < capture->n_members; i++)
		if (capture->members[i].stream == stream)
			return &capture->members[i];
	return NULL;
}

/* Whether some stream that @stream implicitly waits for is being captured. */
CUresult capture_forbids(CUcontext ctx, CUstream stream)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < sim.streams.n; i++) {
		CUstream other = sim.streams.slots[i].value;

		if (other->ctx != ctx || !other->capture)
			continue;
		if (stream && !(stream->is_null && other->blocking))
			continue;
		other->capture->invalid = true;
		r = stream ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
			   : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return r;
}

static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool forbids_unsafe(const struct capture *capture)
{
	if (capture->mode == CU_STREAM_CAPTURE_MODE_RELAXED || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return false;
	return pthread_equal(capture->thread, pthread_self()) ||
	       (capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult capture_forbids_unsafe(void)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < sim.streams.n; i++) {
		CUstream stream = sim.streams.slots[i].value;

		if (!stream->capture || !forbids_unsafe(stream->capture))
			continue;
		stream->capture->invalid = true;
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return r;
}

CUresult capture_add(CUstream stream, const struct stream_op *op)
{
	struct capture *capture = stream->capture;
	CUgraphNode node;
	CUresult r;

	if (capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	r = graph_append(capture->graph, op, &node);
	if (r)
		capture->invalid = true;
	else
		member_of(capture, stream)->pos++;
	return r;
}

void capture_record(CUstream stream, CUevent event)
{
	event->capture = stream->capture;
	event->capture_stream = stream;
	event->capture_pos = member_of(stream->capture, stream)->pos;
}

/* @stream waits for @event of a capture: it becomes, or is, a member. */
CUresult capture_join(CUstream stream, CUevent event)
{
	struct capture *capture = event->capture;
	struct member *recorder = member_of(capture, event->capture_stream);

	if (stream->capture && stream->capture != capture) {
		stream->capture->invalid = capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (stream->is_null) {
		capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	}
	if (!stream->capture) {
		if (capture->n_members == MEMBERS_MAX)
			return CUDA_ERROR_NOT_SUPPORTED;
		capture->members[capture->n_members++] = (struct member){ .stream = stream };
		stream->capture = capture;
	}
	if (recorder && recorder->stream != stream && recorder->joined < event->capture_pos)
		recorder->joined = event->capture_pos;
	return CUDA_SUCCESS;
}

/* Ends the capture; its graph is the caller's. */
static void finish(struct capture *capture)
{
	for (size_t i = 0; i < capture->n_members; i++)
		if (capture->members[i].stream)
			capture->members[i].stream->capture = NULL;
	for (size_t i = 0; i < sim.events.n; i++) {
		CUevent event = sim.events.slots[i].value;

		if (event->capture == capture)
			event->capture = NULL;
	}
	free(capture);
}

/* A stream that is captured is destroyed. */
void capture_leave(CUstream stream)
{
	struct capture *capture = stream->capture;

	if (!capture)
		return;
	if (capture->origin == stream) {
		graph_free(capture->graph);
		finish(capture);
		return;
	}
	capture->invalid = true;
	member_of(capture, stream)->stream = NULL;
	stream->capture = NULL;
}

static CUresult begin(CUcontext ctx, CUstream handle, CUstreamCaptureMode mode)
{
	struct capture *capture;
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (stream->is_null)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	capture = calloc(1, sizeof(*capture));
	if (capture)
		capture->graph = graph_new();
	if (!capture || !capture->graph) {
		free(capture);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	capture->origin = stream;
	capture->mode = mode;
	capture->thread = pthread_self();
	capture->members[capture->n_members++] = (struct member){ .stream = stream };
	stream->capture = capture;
	return CUDA_SUCCESS;
}

static CUresult why_not(const struct capture *capture, CUstream stream)
{
	if (capture->origin != stream)
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    !pthread_equal(capture->thread, pthread_self()))
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (size_t i = 0; i < capture->n_members; i++)
		if (capture->members[i].stream != stream &&
		    capture->members[i].joined < capture->members[i].pos)
			return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	return CUDA_SUCCESS;
}

static CUresult end(CUcontext ctx, CUstream handle, CUgraph *ret)
{
	struct capture *capture;
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (!ret)
		return CUDA_ERROR_INVALID_VALUE;
	capture = stream->capture;
	if (!capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	r = why_not(capture, stream);
	if (r == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED || r == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
		return r;
	if (r)
		graph_free(capture->graph);
	*ret = r ? NULL : capture->graph;
	finish(capture);
	return r;
}

static CUresult is_capturing(CUcontext ctx, CUstream handle, CUstreamCaptureStatus *status)
{
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (!status)
		return CUDA_ERROR_INVALID_VALUE;
	*status = !stream->capture	     ? CU_STREAM_CAPTURE_STATUS_NONE
		  : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
					     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode old = thread_mode;

	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	return API(exchange_mode(mode));
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
	return API_CTX_LOCKED(begin(ctx, stream, mode));
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
	return API_CTX_LOCKED(end(ctx, stream, graph));
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	return API_CTX_LOCKED(is_capturing(ctx, stream, status));
}
