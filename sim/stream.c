// SPDX-License-Identifier: MIT
/*
 * Streams: queues of operations that run in order, each on a thread of its own that starts with the
 * first operation. An operation waits until all before it in its stream, and those of other streams
 * it depends on, are done. The NULL stream of a context and its blocking streams depend on each
 * other as the vendor documents for the legacy default stream.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/clock.h"
#include "sim.h"

static void broadcast(void)
{
	if (sim.waiters)
		pthread_cond_broadcast(&sim.changed);
}

/* false when @deadline_ns came first */
static bool wait_changed(uint64_t deadline_ns)
{
	struct timespec until = { (time_t)(deadline_ns / NS_PER_S),
				  (long)(deadline_ns % NS_PER_S) };
	int r;

	sim.waiters++;
	r = deadline_ns == DEADLINE_NEVER ? pthread_cond_wait(&sim.changed, &sim.lock)
					  : pthread_cond_timedwait(&sim.changed, &sim.lock, &until);
	sim.waiters--;
	return !r;
}

void stream_put(CUstream stream)
{
	if (--stream->refs)
		return;
	handle_remove(&sim.streams, stream);
	pthread_cond_destroy(&stream->work);
	free(stream);
}

static void drop_deps(struct stream_op *op)
{
	for (size_t i = 0; i < op->n_deps; i++)
		stream_put(op->deps[i].stream);
	free(op->deps);
	op->deps = NULL;
	op->n_deps = 0;
}

static bool ready(const struct stream_op *op)
{
	if (op->stream->completed != op->seq - 1)
		return false;
	for (size_t i = 0; i < op->n_deps; i++)
		if (op->deps[i].stream->completed < op->deps[i].seq)
			return false;
	return true;
}

/* Waits for the turn of @op, runs it without the lock, and says that it is done. */
static void perform(struct stream_op *op)
{
	CUcontext ctx = op->ctx;
	CUstream stream = op->stream;
	CUresult r;

	while (!ready(op))
		wait_changed(DEADLINE_NEVER);
	drop_deps(op);
	op->status = ctx->error;
	pthread_mutex_unlock(&sim.lock);
	r = op->run(op);
	pthread_mutex_lock(&sim.lock);
	if (r && !ctx->error)
		ctx->error = r;
	stream->completed++;
	broadcast();
}

static void *stream_thread(void *data)
{
	CUstream stream = data;
	struct stream_op *op;

	prctl(PR_SET_NAME, "cuda-stream"); /* as names of the driver's threads begin */
	pthread_mutex_lock(&sim.lock);
	for (;;) {
		while (!stream->head && !stream->destroyed)
			pthread_cond_wait(&stream->work, &sim.lock);
		op = stream->head;
		if (!op)
			break;
		perform(op);
		stream->head = op->next;
		if (!stream->head)
			stream->tail = &stream->head;
		free(op);
	}
	stream_put(stream);
	pthread_mutex_unlock(&sim.lock);
	return NULL;
}

/* The program's signals are for the program's threads. */
static int start_thread(CUstream stream)
{
	sigset_t all, old;
	pthread_t thread;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, NULL, stream_thread, stream);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return r;
	pthread_detach(thread);
	stream->started = true;
	stream->refs++;
	return 0;
}

CUresult sim_stream_new(CUcontext ctx, unsigned int flags, bool is_null, CUstream *ret)
{
	CUstream stream = calloc(1, sizeof(*stream));

	if (!stream || handle_add(&sim.streams, stream) < 0) {
		free(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	stream->ctx = ctx;
	stream->is_null = is_null;
	stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
	stream->refs = 1;
	stream->tail = &stream->head;
	pthread_cond_init(&stream->work, NULL);
	*ret = stream;
	return CUDA_SUCCESS;
}

/* The handle becomes invalid; submitted work still runs. */
void stream_retire(CUstream stream)
{
	capture_leave(stream);
	stream->destroyed = true;
	pthread_cond_signal(&stream->work);
	stream_put(stream);
}

CUresult stream_resolve(CUcontext ctx, CUstream handle, CUstream *ret)
{
	if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
		*ret = ctx->null_stream;
		return CUDA_SUCCESS;
	}
	if (!handle_valid(&sim.streams, handle) || handle->is_null || handle->destroyed)
		return CUDA_ERROR_INVALID_HANDLE;
	CUresult error = handle->ctx->error;
	if (error)
		return error;
	*ret = handle;
	return CUDA_SUCCESS;
}

static int add_dep(struct stream_op *op, CUstream stream, uint64_t seq)
{
	struct stream_dep *deps;

	if (stream->completed >= seq)
		return 0;
	deps = realloc(op->deps, (op->n_deps + 1) * sizeof(*deps));
	if (!deps)
		return -1;
	op->deps = deps;
	stream->refs++;
	deps[op->n_deps++] = (struct stream_dep){ stream, seq };
	return 0;
}

/* What the legacy default stream and the blocking streams wait for in each other. */
static int add_implicit_deps(struct stream_op *op)
{
	CUstream mine = op->stream, null = mine->ctx->null_stream;

	if (!mine->blocking)
		return 0;
	if (!mine->is_null)
		return add_dep(op, null, null->submitted);
	for (size_t i = 0; i < sim.streams.n; i++) {
		CUstream other = sim.streams.slots[i].value;

		if (other != mine && other->ctx == mine->ctx && other->blocking &&
		    add_dep(op, other, other->submitted) < 0)
			return -1;
	}
	return 0;
}

static CUresult prepare(CUstream stream, struct stream_op *op, CUstream after, uint64_t after_seq)
{
	op->stream = stream;
	op->ctx = stream->ctx;
	op->next = NULL;
	op->deps = NULL;
	op->n_deps = 0;
	if (add_implicit_deps(op) < 0 || (after && add_dep(op, after, after_seq) < 0)) {
		drop_deps(op);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return CUDA_SUCCESS;
}

CUresult stream_submit_after(CUstream stream, const struct stream_op *op, CUstream after,
			     uint64_t seq)
{
	struct stream_op *queued = malloc(sizeof(*queued));
	CUresult r;

	if (!queued)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*queued = *op;
	r = prepare(stream, queued, after, seq);
	if (!r && !stream->started && start_thread(stream)) {
		drop_deps(queued);
		r = CUDA_ERROR_OPERATING_SYSTEM;
	}
	if (r) {
		free(queued);
		return r;
	}
	queued->seq = ++stream->submitted;
	*stream->tail = queued;
	stream->tail = &queued->next;
	pthread_cond_signal(&stream->work);
	return CUDA_SUCCESS;
}

CUresult stream_submit(CUstream stream, const struct stream_op *op, uint64_t *ret_seq)
{
	CUresult r;

	if (stream->capture)
		return capture_add(stream, op);
	r = capture_forbids(stream->ctx, stream);
	if (!r)
		r = stream_submit_after(stream, op, NULL, 0);
	if (!r && ret_seq)
		*ret_seq = stream->submitted;
	return r;
}

/* Runs on the caller's thread, when its turn comes: saves two switches of threads. */
CUresult stream_run(CUstream stream, const struct stream_op *op)
{
	struct stream_op mine = *op;
	CUresult r = capture_forbids(stream->ctx, stream);

	if (!r && stream->capture)
		r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (!r)
		r = prepare(stream, &mine, NULL, 0);
	if (r)
		return r;
	mine.seq = ++stream->submitted;
	stream->refs++;
	perform(&mine);
	stream_put(stream);
	return mine.ctx->error;
}

static bool wait_until(CUstream stream, uint64_t seq, uint64_t deadline_ns)
{
	while (stream->completed < seq)
		if (!wait_changed(deadline_ns))
			return false;
	return true;
}

void stream_wait(CUstream stream, uint64_t seq)
{
	stream->refs++;
	wait_until(stream, seq, DEADLINE_NEVER);
	stream_put(stream);
}

/* Waits for what has been submitted so far; @ctx NULL: anywhere. */
bool streams_wait(CUcontext ctx, uint64_t deadline_ns)
{
	struct stream_op submitted = { 0 };
	bool done = true;

	for (size_t i = 0; i < sim.streams.n && done; i++) {
		CUstream stream = sim.streams.slots[i].value;

		if (!ctx || stream->ctx == ctx)
			done = add_dep(&submitted, stream, stream->submitted) >= 0;
	}
	for (size_t i = 0; i < submitted.n_deps && done; i++)
		done = wait_until(submitted.deps[i].stream, submitted.deps[i].seq, deadline_ns);
	drop_deps(&submitted);
	return done;
}

CUresult op_nothing(struct stream_op *op)
{
	return CUDA_SUCCESS;
}

static CUresult op_host(struct stream_op *op)
{
	api_in_callback = true;
	if (op->host.fn)
		op->host.fn(op->host.data);
	else
		op->host.callback(op->host.stream, op->status, op->host.data);
	api_in_callback = false;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext ctx, CUstream *ret, unsigned int flags)
{
	if (!ret || flags & ~1u)
		return CUDA_ERROR_INVALID_VALUE;
	return sim_stream_new(ctx, flags, false, ret);
}

static CUresult destroy(CUstream stream)
{
	if (!handle_valid(&sim.streams, stream) || stream->is_null || stream->destroyed)
		return CUDA_ERROR_INVALID_HANDLE;
	stream_retire(stream);
	return CUDA_SUCCESS;
}

static CUresult synchronize(CUcontext ctx, CUstream handle)
{
	struct stream_op nothing = { .run = op_nothing };
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (stream->is_null)
		return stream_run(stream, &nothing);
	ctx = stream->ctx;
	stream_wait(stream, stream->submitted);
	return ctx->error;
}

static CUresult query(CUcontext ctx, CUstream handle)
{
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);
	bool busy;

	if (r)
		return r;
	if (stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	busy = stream->completed < stream->submitted;
	for (size_t i = 0; i < sim.streams.n && stream->is_null; i++) {
		CUstream other = sim.streams.slots[i].value;

		if (other->ctx == ctx && other->blocking && other->completed < other->submitted)
			busy = true;
	}
	return busy ? CUDA_ERROR_NOT_READY : stream->ctx->error;
}

static CUresult submit_host(CUcontext ctx, CUstream handle, struct stream_op *op)
{
	CUstream stream;
	CUresult r = stream_resolve(ctx, handle, &stream);

	if (r)
		return r;
	if (!op->host.fn && stream->capture)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	return stream_submit(stream, op, NULL);
}

static CUresult add_callback(CUcontext ctx, CUstream handle, CUstreamCallback fn, void *data,
			     unsigned int flags)
{
	struct stream_op op = { .run = op_host,
				.host = { .callback = fn, .data = data, .stream = handle } };

	return fn && !flags ? submit_host(ctx, handle, &op) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult launch_host(CUcontext ctx, CUstream handle, CUhostFn fn, void *data)
{
	struct stream_op op = { .run = op_host, .host = { .fn = fn, .data = data } };

	return fn ? submit_host(ctx, handle, &op) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
	return API_CTX_LOCKED(create(ctx, stream, flags));
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
	return API_CTX_LOCKED(create(ctx, stream, flags));
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
	return API_LOCKED(destroy(stream));
}

CUresult cuStreamSynchronize(CUstream stream)
{
	return API_CTX_LOCKED(synchronize(ctx, stream));
}

CUresult cuStreamQuery(CUstream stream)
{
	return API_CTX_LOCKED(query(ctx, stream));
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback fn, void *data, unsigned int flags)
{
	return API_CTX_LOCKED(add_callback(ctx, stream, fn, data, flags));
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
	return API_CTX_LOCKED(launch_host(ctx, stream, fn, data));
}
