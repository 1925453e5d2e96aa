// SPDX-License-Identifier: MIT
/* Streams, events, host functions, graphs and kernels of the simulated driver. */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "sim.h"

static CUmodule module;
static CUcontext ctx;

static void wait_for(void *semaphore)
{
	while (sem_wait(semaphore) < 0)
		;
}

static void test_kernels(void)
{
	CUfunction fill = kernel(module, "brumate_fill_u64"),
		   add = kernel(module, "brumate_add_u64"), sum = kernel(module, "brumate_sum_u64"),
		   missing;
	uint64_t n = 1000, base = 17, value = 3, result = 5, want = 5;
	CUdeviceptr p, out;

	for (uint64_t i = 0; i < n; i++)
		want += (base + i) * 2654435761u + value;
	CHECK(cu.cuMemAlloc_v2(&p, n * 8) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&out, 8) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyHtoD_v2(out, &result, 8) == CUDA_SUCCESS);
	CHECK(LAUNCH(fill, NULL, &p, &n, &base) == CUDA_SUCCESS);
	CHECK(LAUNCH(add, NULL, &p, &n, &value) == CUDA_SUCCESS);
	CHECK(LAUNCH(sum, NULL, &p, &n, &out) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&result, out, 8) == CUDA_SUCCESS);
	CHECK(result == want);
	CHECK(cu.cuModuleGetFunction(&missing, module, "not_one_of_ours") == CUDA_ERROR_NOT_FOUND);
	CHECK(cu.cuModuleGetFunction(&missing, module, "absent") == CUDA_ERROR_NOT_FOUND);
	cu.cuMemFree_v2(p);
	cu.cuMemFree_v2(out);
}

static void test_globals(void)
{
	CUdeviceptr ptr;
	uint64_t value;
	size_t bytes;

	CHECK(cu.cuModuleGetGlobal_v2(&ptr, &bytes, module, "counter") == CUDA_SUCCESS);
	CHECK(bytes == 8);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr, 8) == CUDA_SUCCESS);
	CHECK(value == 7);
	CHECK(cu.cuModuleGetGlobal_v2(&ptr, &bytes, module, "absent") == CUDA_ERROR_NOT_FOUND);
}

/* Submitting returns at once; the stream is busy until its host function lets go. */
static void test_asynchronous(void)
{
	CUdeviceptr ptr;
	CUstream stream, free_stream;
	uint32_t value;
	sem_t gate;

	sem_init(&gate, 0, 0);
	CHECK(cu.cuMemAlloc_v2(&ptr, 4) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32_v2(ptr, 1, 1) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&free_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cu.cuLaunchHostFunc(stream, wait_for, &gate) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32Async(ptr, 2, 1, stream) == CUDA_SUCCESS);
	CHECK(cu.cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
	CHECK(cu.cuStreamSynchronize(free_stream) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr, 4) ==
	      CUDA_SUCCESS); /* non-blocking: not waited for */
	CHECK(value == 1);
	sem_post(&gate);
	CHECK(cu.cuStreamSynchronize(stream) == CUDA_SUCCESS);
	CHECK(cu.cuStreamQuery(stream) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr, 4) == CUDA_SUCCESS);
	CHECK(value == 2);
	CHECK(cu.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	CHECK(cu.cuStreamDestroy_v2(stream) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(cu.cuStreamDestroy_v2(free_stream) == CUDA_SUCCESS);
	cu.cuMemFree_v2(ptr);
}

/* The legacy default stream waits for blocking streams, and they for it. */
static void test_default_stream(void)
{
	CUfunction spin = kernel(module, "brumate_spin_ns");
	uint64_t ns = 30 * 1000000;
	CUstream stream;
	CUdeviceptr ptr;
	uint32_t value;

	CHECK(cu.cuMemAlloc_v2(&ptr, 4) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&stream, CU_STREAM_DEFAULT) == CUDA_SUCCESS);
	CHECK(LAUNCH(spin, stream, &ns) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32Async(ptr, 11, 1, stream) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr, 4) == CUDA_SUCCESS);
	CHECK(value == 11);
	CHECK(LAUNCH(spin, NULL, &ns) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32Async(ptr, 12, 1, NULL) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32Async(ptr, 13, 1, stream) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSynchronize() == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr, 4) == CUDA_SUCCESS);
	CHECK(value == 13);
	cu.cuStreamDestroy_v2(stream);
	cu.cuMemFree_v2(ptr);
}

static void test_events(void)
{
	CUfunction spin = kernel(module, "brumate_spin_ns");
	CUstream first, second;
	CUevent start, end;
	CUdeviceptr ptr;
	uint64_t ns = 20 * 1000000;
	uint32_t value;
	float ms;

	CHECK(cu.cuMemAlloc_v2(&ptr, 4) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&first, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&second, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cu.cuEventCreate(&start, 0) == CUDA_SUCCESS);
	CHECK(cu.cuEventCreate(&end, 0) == CUDA_SUCCESS);
	CHECK(cu.cuEventQuery(start) == CUDA_SUCCESS); /* never recorded */
	CHECK(cu.cuEventElapsedTime(&ms, start, end) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(cu.cuEventRecord(start, first) == CUDA_SUCCESS);
	CHECK(LAUNCH(spin, first, &ns) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32Async(ptr, 21, 1, first) == CUDA_SUCCESS);
	CHECK(cu.cuEventRecord(end, first) == CUDA_SUCCESS);
	CHECK(cu.cuEventQuery(end) == CUDA_ERROR_NOT_READY);
	CHECK(cu.cuStreamWaitEvent(second, end, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32Async(ptr, 22, 1, second) == CUDA_SUCCESS);
	CHECK(cu.cuStreamSynchronize(second) == CUDA_SUCCESS);
	CHECK(cu.cuEventSynchronize(end) == CUDA_SUCCESS);
	CHECK(cu.cuEventElapsedTime(&ms, start, end) == CUDA_SUCCESS);
	CHECK(ms >= 20);
	CHECK(cu.cuMemcpyDtoH_v2(&value, ptr, 4) == CUDA_SUCCESS);
	CHECK(value == 22);
	CHECK(cu.cuEventDestroy_v2(start) == CUDA_SUCCESS);
	CHECK(cu.cuEventDestroy_v2(start) == CUDA_ERROR_INVALID_HANDLE);
	CHECK(cu.cuEventDestroy_v2(end) == CUDA_SUCCESS);
	cu.cuStreamDestroy_v2(first);
	cu.cuStreamDestroy_v2(second);
	cu.cuMemFree_v2(ptr);
}

struct seen {
	CUstream stream;
	CUresult status, call;
};

static void callback(CUstream stream, CUresult status, void *data)
{
	struct seen *seen = data;

	*seen = (struct seen){ stream, status, cu.cuCtxSynchronize() };
}

static void test_callback(void)
{
	struct seen seen = { 0 };
	CUstream stream;

	CHECK(cu.cuStreamCreate(&stream, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamAddCallback(stream, callback, &seen, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamSynchronize(stream) == CUDA_SUCCESS);
	CHECK(seen.stream == stream && seen.status == CUDA_SUCCESS);
	CHECK(seen.call == CUDA_ERROR_NOT_PERMITTED);
	cu.cuStreamDestroy_v2(stream);
}

/* Two streams forked and joined in a capture; the graph runs as often as it is launched. */
static void test_capture(void)
{
	CUfunction add = kernel(module, "brumate_add_u64"), sum = kernel(module, "brumate_sum_u64");
	uint64_t n = 4, one = 1, result;
	CUstream first, second;
	CUstreamCaptureStatus status;
	CUdeviceptr p, out;
	CUevent fork_event, join_event;
	CUgraphExec exec;
	CUgraph graph;

	CHECK(cu.cuMemAlloc_v2(&p, 32) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&out, 8) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD8_v2(p, 0, 32) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD8_v2(out, 0, 8) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&first, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&second, 0) == CUDA_SUCCESS);
	CHECK(cu.cuEventCreate(&fork_event, 0) == CUDA_SUCCESS);
	CHECK(cu.cuEventCreate(&join_event, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamBeginCapture_v2(first, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
	CHECK(LAUNCH(add, first, &p, &n, &one) == CUDA_SUCCESS);
	CHECK(cu.cuEventRecord(fork_event, first) == CUDA_SUCCESS);
	CHECK(cu.cuStreamWaitEvent(second, fork_event, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamIsCapturing(second, &status) == CUDA_SUCCESS);
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	CHECK(LAUNCH(sum, second, &p, &n, &out) == CUDA_SUCCESS);
	CHECK(cu.cuEventRecord(join_event, second) == CUDA_SUCCESS);
	CHECK(cu.cuStreamWaitEvent(first, join_event, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamEndCapture(first, &graph) == CUDA_SUCCESS);
	CHECK(cu.cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS);
	CHECK(cu.cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&result, out, 8) == CUDA_SUCCESS);
	CHECK(result == 0); /* captured, not run */
	for (int i = 0; i < 3; i++)
		CHECK(cu.cuGraphLaunch(exec, first) == CUDA_SUCCESS);
	CHECK(cu.cuGraphExecDestroy(exec) == CUDA_SUCCESS);
	CHECK(cu.cuMemcpyDtoH_v2(&result, out, 8) == CUDA_SUCCESS);
	CHECK(result == 4 + 8 + 12);
	cu.cuEventDestroy_v2(fork_event);
	cu.cuEventDestroy_v2(join_event);
	cu.cuStreamDestroy_v2(first);
	cu.cuStreamDestroy_v2(second);
	cu.cuMemFree_v2(p);
	cu.cuMemFree_v2(out);
}

static void test_capture_refusals(void)
{
	CUstream first, second;
	CUstreamCaptureStatus status;
	CUdeviceptr p;
	CUevent event;
	CUgraph graph;

	CHECK(cu.cuMemAlloc_v2(&p, 32) == CUDA_SUCCESS);
	CHECK(cu.cuEventCreate(&event, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&first, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamCreate(&second, 0) == CUDA_SUCCESS);
	CHECK(cu.cuStreamEndCapture(first, &graph) == CUDA_ERROR_ILLEGAL_STATE);
	CHECK(cu.cuStreamBeginCapture_v2(NULL, 0) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	/* Work that nobody waits for. */
	CHECK(cu.cuStreamBeginCapture_v2(first, 0) == CUDA_SUCCESS);
	CHECK(cu.cuEventRecord(event, first) == CUDA_SUCCESS);
	CHECK(cu.cuStreamWaitEvent(second, event, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32Async(p, 1, 1, second) == CUDA_SUCCESS);
	CHECK(cu.cuStreamEndCapture(second, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	CHECK(cu.cuStreamEndCapture(first, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
	/* The default stream would wait for the captured one. */
	CHECK(cu.cuStreamBeginCapture_v2(first, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemsetD32_v2(p, 1, 1) == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	CHECK(cu.cuStreamIsCapturing(first, &status) == CUDA_SUCCESS);
	CHECK(status == CU_STREAM_CAPTURE_STATUS_INVALIDATED);
	CHECK(cu.cuStreamEndCapture(first, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	/* And everything works again. */
	CHECK(cu.cuMemsetD32Async(p, 1, 1, first) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSynchronize() == CUDA_SUCCESS);
	cu.cuEventDestroy_v2(event);
	cu.cuStreamDestroy_v2(first);
	cu.cuStreamDestroy_v2(second);
	cu.cuMemFree_v2(p);
}

struct beside {
	CUstreamCaptureMode mode; /* the thread's */
	CUresult result;
};

static void *alloc_beside(void *arg)
{
	struct beside *b = arg;
	CUdeviceptr ptr;

	CHECK(cu.cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	CHECK(cu.cuThreadExchangeStreamCaptureMode(&b->mode) == CUDA_SUCCESS);
	b->result = cu.cuMemAlloc_v2(&ptr, 4096);
	if (!b->result)
		CHECK(cu.cuMemFree_v2(ptr) == CUDA_SUCCESS);
	return NULL;
}

/* Only a global capture minds, and ends, when a thread that does not say it knows what it does allocates. */
static void test_alloc_beside_capture(void)
{
	const CUstreamCaptureMode global = CU_STREAM_CAPTURE_MODE_GLOBAL, local = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
				  relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
	const struct {
		CUstreamCaptureMode capture, thread;
		bool allowed;
	} cases[] = { { global, global, false }, { global, relaxed, true }, { local, global, true }, { relaxed, global, true } };
	CUstream stream;

	CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct beside beside = { .mode = cases[i].thread };
		CUgraph graph = NULL;
		pthread_t thread;

		CHECK(cu.cuStreamBeginCapture_v2(stream, cases[i].capture) == CUDA_SUCCESS);
		CHECK(pthread_create(&thread, NULL, alloc_beside, &beside) == 0 && pthread_join(thread, NULL) == 0);
		CHECK(beside.result == (cases[i].allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
		CHECK(cu.cuStreamEndCapture(stream, &graph) ==
		      (cases[i].allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
		CHECK(!graph || cu.cuGraphDestroy(graph) == CUDA_SUCCESS);
	}
	CHECK(cu.cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

/* Memory that is freed in stream order is there until the stream comes to it. */
static void test_async_memory(void)
{
	size_t before = free_bytes();
	CUdeviceptr ptr;
	CUstream stream;
	sem_t gate;

	sem_init(&gate, 0, 0);
	CHECK(cu.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cu.cuMemAllocAsync(&ptr, 4 * MIB, stream) == CUDA_SUCCESS);
	CHECK(cu.cuLaunchHostFunc(stream, wait_for, &gate) == CUDA_SUCCESS);
	CHECK(cu.cuMemFreeAsync(ptr, stream) == CUDA_SUCCESS);
	CHECK(before - free_bytes() == 4 * MIB);
	sem_post(&gate);
	CHECK(cu.cuStreamSynchronize(stream) == CUDA_SUCCESS);
	CHECK(free_bytes() == before);
	cu.cuStreamDestroy_v2(stream);
}

/* A kernel that goes astray ruins its context for good. */
static void test_illegal_address(void)
{
	CUfunction fill = kernel(module, "brumate_fill_u64");
	uint64_t n = 1 << 20, base = 0;
	CUdeviceptr ptr;

	CHECK(cu.cuMemAlloc_v2(&ptr, 64) == CUDA_SUCCESS);
	CHECK(LAUNCH(fill, NULL, &ptr, &n, &base) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cu.cuMemFree_v2(ptr) == CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(cu.cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	CHECK(cu.cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS);
	CHECK(cu.cuMemAlloc_v2(&ptr, 64) == CUDA_SUCCESS);
}

int main(void)
{
	make_machine("64");
	ctx = start_driver(0);
	module = load_kernels();
	test_kernels();
	test_globals();
	test_asynchronous();
	test_default_stream();
	test_events();
	test_callback();
	test_capture();
	test_capture_refusals();
	test_alloc_beside_capture();
	test_async_memory();
	test_illegal_address();
	return 0;
}
