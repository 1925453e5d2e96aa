// SPDX-License-Identifier: MIT
/* Allocations by the program: many, small, from threads, out of memory; and what is told of them. */
#include "job.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { MIB = 1 << 20, SMALL = 10000, MEDIUM = 3000, LIVE = 200, STEPS = 3000, THREADS = 4, CAPTURES = 5000 };

static size_t free_now(void)
{
	size_t free_bytes, total;

	CHECK(cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS);
	return free_bytes;
}

static void test_many_small(void)
{
	static CUdeviceptr ptrs[SMALL];
	size_t before = free_now(), n;
	struct agent_piece *pieces;
	int conn;

	for (unsigned int i = 0; i < SMALL; i++) {
		CHECK(cuMemAlloc_v2(&ptrs[i], 1000) == CUDA_SUCCESS);
		CHECK(ptrs[i] % 512 == 0);
		fill(ptrs[i], 1000, i);
	}
	CHECK(before - free_now() == SMALL * 1024);
	conn = agent_connect();
	pieces = agent_list(conn, &n);
	CHECK(n <= 5); /* slabs of 2 to 16 MiB */
	free(pieces);
	close(conn);
	agent_cycle();
	for (unsigned int i = 0; i < SMALL; i++)
		CHECK(holds(ptrs[i], 1000, i));
	for (unsigned int i = 0; i < SMALL; i++)
		CHECK(cuMemFree_v2(ptrs[(i * 7919) % SMALL]) == CUDA_SUCCESS);
	CHECK(free_now() == before);
}

/* Few pieces, and never much more memory than was asked for. */
static void test_many_medium(void)
{
	static CUdeviceptr ptrs[MEDIUM];
	size_t n;
	uint64_t taken = 0;
	int conn = agent_connect();

	for (unsigned int i = 0; i < MEDIUM; i++)
		CHECK(cuMemAlloc_v2(&ptrs[i], MIB) == CUDA_SUCCESS);
	struct agent_piece *pieces = agent_list(conn, &n);
	for (size_t i = 0; i < n; i++)
		taken += pieces[i].len_bytes;
	CHECK(n <= 36); /* slabs of 2 to 64 MiB, fifteen of 64, eight of 128, the rest of 256 */
	CHECK(taken >= (uint64_t)MEDIUM * MIB && taken <= (uint64_t)MEDIUM * MIB * 9 / 8);
	free(pieces);
	for (size_t i = 0; i < MEDIUM; i++)
		CHECK(cuMemFree_v2(ptrs[i]) == CUDA_SUCCESS);
	/* Who has little has small slabs again. */
	CHECK(cuMemAlloc_v2(&ptrs[0], MIB) == CUDA_SUCCESS);
	pieces = agent_list(conn, &n);
	for (size_t i = 0; i < n; i++)
		CHECK(pieces[i].len_bytes <= 64 * MIB);
	free(pieces);
	CHECK(cuMemFree_v2(ptrs[0]) == CUDA_SUCCESS);
	close(conn);
}

static void test_queries(CUcontext ctx)
{
	CUpointer_attribute names[] = { CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
					CU_POINTER_ATTRIBUTE_RANGE_SIZE,
					CU_POINTER_ATTRIBUTE_CONTEXT };
	CUdeviceptr a, b, base, start;
	uint64_t id_a, id_b;
	size_t bytes, size;
	CUcontext owner;
	void *data[] = { &start, &size, &owner };

	CHECK(cuMemAlloc_v2(&a, 700) == CUDA_SUCCESS && cuMemAlloc_v2(&b, 700) == CUDA_SUCCESS);
	CHECK(cuMemGetAddressRange_v2(&base, &bytes, a + 699) == CUDA_SUCCESS);
	CHECK(base == a && bytes == 700);
	CHECK(cuMemGetAddressRange_v2(&base, &bytes, a + 700) == CUDA_ERROR_NOT_FOUND);
	CHECK(cuPointerGetAttributes(3, names, data, b + 1) == CUDA_SUCCESS);
	CHECK(start == b && size == 700 && owner == ctx);
	CHECK(cuPointerGetAttributes(3, names, data, b + 800) == CUDA_SUCCESS);
	CHECK(!start && !size && !owner);
	CHECK(!cuPointerGetAttribute(&id_a, CU_POINTER_ATTRIBUTE_BUFFER_ID, a));
	CHECK(!cuPointerGetAttribute(&id_b, CU_POINTER_ATTRIBUTE_BUFFER_ID, b));
	CHECK(id_a != id_b);
	CHECK(cuMemFree_v2(a + 512) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemFree_v2(a) == CUDA_SUCCESS && cuMemFree_v2(b) == CUDA_SUCCESS);
	CHECK(cuMemFree_v2(a) == CUDA_ERROR_INVALID_VALUE);
}

/* All there is, then half of it again, and nothing lost at any point. */
static void test_exhaustion(void)
{
	enum { PART = 97 * MIB, FREED = 6 };
	CUdeviceptr ptrs[64], big;
	size_t before = free_now(), n = 0;

	CHECK(cuMemAlloc_v2(&big, 1ull << 50) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuMemAlloc_v2(&big, before + 1) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(free_now() == before);
	while (n < 64 && !cuMemAlloc_v2(&ptrs[n], PART))
		fill(ptrs[n], PART, (unsigned int)n), n++;
	CHECK(n > FREED && n < 64);
	/* Fails in its second piece. */
	for (size_t i = n - FREED; i < n; i++)
		CHECK(cuMemFree_v2(ptrs[i]) == CUDA_SUCCESS);
	CHECK(cuMemAlloc_v2(&big, 700 * MIB) == CUDA_ERROR_OUT_OF_MEMORY);
	for (size_t i = n - FREED; i < n; i++)
		CHECK(cuMemAlloc_v2(&ptrs[i], PART) == CUDA_SUCCESS);
	for (size_t i = 0; i < n - FREED; i++)
		CHECK(holds(ptrs[i], PART, (unsigned int)i));
	for (size_t i = 0; i < n; i++)
		CHECK(cuMemFree_v2(ptrs[i]) == CUDA_SUCCESS);
	CHECK(free_now() == before);
}

/* Memory goes with its context. */
static void test_context_end(CUcontext primary)
{
	size_t before = free_now(), bytes;
	CUdeviceptr small, large, base;
	CUcontext ctx;

	CHECK(cuCtxCreate_v2(&ctx, 0, 0) == CUDA_SUCCESS);
	CHECK(cuMemAlloc_v2(&small, 100) == CUDA_SUCCESS);
	CHECK(cuMemAlloc_v2(&large, 10 * MIB) == CUDA_SUCCESS);
	/* From another context the same call works. */
	CHECK(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
	fill(large, 10 * MIB, 1);
	CHECK(cuCtxDestroy_v2(ctx) == CUDA_SUCCESS);
	CHECK(cuMemGetAddressRange_v2(&base, &bytes, small) == CUDA_ERROR_NOT_FOUND);
	CHECK(cuMemFree_v2(large) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuCtxSetCurrent(primary) == CUDA_SUCCESS);
	CHECK(free_now() == before);
	agent_cycle();
}

struct fuzz {
	CUcontext ctx;
	unsigned int seed;
};

static void *fuzz(void *arg)
{
	struct fuzz *f = arg;
	unsigned int state = f->seed;
	struct {
		CUdeviceptr ptr;
		size_t bytes;
		unsigned int seed;
	} live[LIVE] = { 0 };

	CHECK(cuCtxSetCurrent(f->ctx) == CUDA_SUCCESS);
	for (unsigned int i = 0; i < STEPS; i++) {
		unsigned int at = (unsigned int)rand_r(&state) % LIVE;

		if (live[at].ptr) {
			CHECK(holds(live[at].ptr, live[at].bytes, live[at].seed));
			CHECK(cuMemFree_v2(live[at].ptr) == CUDA_SUCCESS);
			live[at].ptr = 0;
			continue;
		}
		live[at].bytes =
			1 + (size_t)rand_r(&state) % (rand_r(&state) % 50 ? 5000 : 3 * MIB);
		live[at].seed = f->seed ^ i;
		CHECK(cuMemAlloc_v2(&live[at].ptr, live[at].bytes) == CUDA_SUCCESS);
		fill(live[at].ptr, live[at].bytes, live[at].seed);
	}
	for (unsigned int at = 0; at < LIVE; at++) {
		if (!live[at].ptr)
			continue;
		CHECK(holds(live[at].ptr, live[at].bytes, live[at].seed));
		CHECK(cuMemFree_v2(live[at].ptr) == CUDA_SUCCESS);
	}
	return NULL;
}

/* Threads at work, and the memory taken away and brought back under them. */
static void test_fuzz(CUcontext ctx)
{
	struct fuzz work[THREADS];
	pthread_t threads[THREADS];
	size_t before = free_now();

	for (unsigned int i = 0; i < THREADS; i++) {
		work[i] = (struct fuzz){ ctx, i * 1000003 + 17 };
		CHECK(pthread_create(&threads[i], NULL, fuzz, &work[i]) == 0);
	}
	for (int i = 0; i < 10; i++)
		agent_cycle();
	for (unsigned int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	CHECK(free_now() == before);
	agent_cycle();
}

/* What is freed while a stream is captured is freed when that is over; the gate waits as well. */
static void test_capture(void)
{
	struct agent_request request = { .op = AGENT_GATE, .timeout_ms = 50 };
	struct agent_reply reply;
	size_t before = free_now();
	CUdeviceptr ptr;
	CUstream stream;
	CUgraph graph;
	int conn = agent_connect();

	CHECK(cuMemAlloc_v2(&ptr, 4 * MIB) == CUDA_SUCCESS);
	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
	CHECK(cuMemFree_v2(ptr) == CUDA_SUCCESS);
	CHECK(agent_ask(conn, &request, &reply, NULL, 0) == -ETIMEDOUT);
	CHECK(reply.gate == AGENT_GATE_OPEN);
	CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
	CHECK(cuMemAlloc_v2(&ptr, 100) == CUDA_SUCCESS && cuMemFree_v2(ptr) == CUDA_SUCCESS);
	CHECK(free_now() == before);
	CHECK(agent_gate(conn, &reply) == 0);
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
	close(conn);
}

static void *free_beside(void *arg)
{
	CUcontext ctx = arg;
	CUdeviceptr ptr;

	CHECK(cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	for (int i = 0; i < CAPTURES; i++)
		CHECK(cuMemAlloc_v2(&ptr, 4096) == CUDA_SUCCESS && cuMemFree_v2(ptr) == CUDA_SUCCESS);
	return NULL;
}

/* Freeing waits for work, which is an error while a stream is captured, and would end the capture. */
static void test_capture_beside_frees(CUcontext ctx)
{
	size_t before = free_now();
	CUdeviceptr ptr;
	pthread_t thread;
	CUstream stream;
	CUgraph graph;

	CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
	CHECK(pthread_create(&thread, NULL, free_beside, ctx) == 0);
	for (int i = 0; i < CAPTURES; i++) {
		CHECK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
		CHECK(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
		CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(cuMemAlloc_v2(&ptr, 100) == CUDA_SUCCESS && cuMemFree_v2(ptr) == CUDA_SUCCESS);
	CHECK(free_now() == before);
	CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
}

int main(void)
{
	CUcontext ctx = job_start("4096");

	test_many_small();
	test_many_medium();
	test_queries(ctx);
	test_exhaustion();
	test_context_end(ctx);
	test_capture();
	test_capture_beside_frees(ctx);
	test_fuzz(ctx);
	return 0;
}
