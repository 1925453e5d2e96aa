// SPDX-License-Identifier: MIT
/* Managed memory that is host memory: what the driver tells of it and takes it for, and where it goes. */
#include "job.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = (3 << 20) + 100, PAGE = 4096 };

static const CUmemLocation on_gpu = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
			   on_host = { CU_MEM_LOCATION_TYPE_HOST, 0 };

static CUdeviceptr alloc(size_t bytes)
{
	CUdeviceptr ptr;

	CHECK(!cuMemAllocManaged(&ptr, bytes, CU_MEM_ATTACH_GLOBAL));
	return ptr;
}

/* Whether the pages are this process's at all, by asking the kernel to write them nowhere. */
static bool is_mapped(CUdeviceptr ptr)
{
	int fds[2];
	bool there;

	CHECK(pipe(fds) == 0);
	there = write(fds[1], (void *)(uintptr_t)ptr, 1) == 1;
	close(fds[0]);
	close(fds[1]);
	return there;
}

static unsigned int told(CUpointer_attribute attribute, CUdeviceptr ptr)
{
	unsigned int value = 77;

	CHECK(!cuPointerGetAttribute(&value, attribute, ptr));
	return value;
}

static void is_told_as_managed(CUdeviceptr ptr, size_t bytes)
{
	CUpointer_attribute attributes[] = { CU_POINTER_ATTRIBUTE_IS_MANAGED,
					     CU_POINTER_ATTRIBUTE_RANGE_SIZE };
	unsigned int is_managed = 77;
	size_t size = 0;
	void *many[] = { &is_managed, &size }, *host = NULL;
	CUdeviceptr base = 0;

	CHECK(told(CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr + bytes - 1) == 1);
	CHECK(told(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) == CU_MEMORYTYPE_DEVICE);
	CHECK(told(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, ptr) == 0);
	CHECK(!cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, ptr + 5));
	CHECK((CUdeviceptr)(uintptr_t)host == ptr + 5);
	CHECK(!cuPointerGetAttributes(2, attributes, many, ptr) && is_managed == 1 &&
	      size == bytes);
	CHECK(!cuMemGetAddressRange_v2(&base, &size, ptr + 9) && base == ptr && size == bytes);
}

static int range_says(CUmem_range_attribute attribute, CUdeviceptr ptr)
{
	int value = 77;

	CHECK(!cuMemRangeGetAttribute(&value, sizeof(value), attribute, ptr, BYTES));
	return value;
}

static void advice_is_remembered(CUdeviceptr ptr)
{
	int by[3];

	CHECK(range_says(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, ptr) == -2);
	CHECK(!cuMemAdvise_v2(ptr, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, on_gpu));
	CHECK(range_says(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, ptr) == 0);
	CHECK(!cuMemAdvise(ptr, BYTES, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
	CHECK(range_says(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, ptr) == CU_DEVICE_CPU);
	CHECK(!cuMemAdvise_v2(ptr, BYTES, CU_MEM_ADVISE_SET_READ_MOSTLY, on_gpu));
	CHECK(range_says(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, ptr) == 1);
	CHECK(!cuMemAdvise_v2(ptr, BYTES, CU_MEM_ADVISE_SET_ACCESSED_BY, on_host));
	CHECK(!cuMemRangeGetAttribute(by, sizeof(by), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, ptr,
				      BYTES));
	CHECK(by[0] == CU_DEVICE_CPU && by[1] == -2 && by[2] == -2);
	CHECK(!cuMemPrefetchAsync(ptr, BYTES, 0, NULL));
	CHECK(range_says(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, ptr) == 0);
	CHECK(!cuMemPrefetchAsync_v2(ptr, BYTES, on_host, 0, NULL));
	CHECK(range_says(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, ptr) ==
	      CU_MEM_LOCATION_TYPE_HOST);
}

/* As the driver would. */
static void mistakes_are_told(CUdeviceptr ptr)
{
	CUmemLocation nowhere = { CU_MEM_LOCATION_TYPE_DEVICE, 55 };
	CUdeviceptr other;

	CHECK(cuMemAllocManaged(&other, 0, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAllocManaged(&other, 1, CU_MEM_ATTACH_SINGLE) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAllocManaged(&other, 1ull << 46, CU_MEM_ATTACH_GLOBAL) ==
	      CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cuMemFree_v2(ptr + 1) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemPrefetchAsync_v2(ptr, BYTES, nowhere, 0, NULL) == CUDA_ERROR_INVALID_DEVICE);
	CHECK(cuMemPrefetchAsync_v2(ptr, BYTES + 1, on_gpu, 0, NULL) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuStreamAttachMemAsync(NULL, ptr, 5, CU_MEM_ATTACH_GLOBAL) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuStreamAttachMemAsync(NULL, ptr, BYTES, CU_MEM_ATTACH_HOST));
	CHECK(!cuStreamAttachMemAsync(NULL, ptr, 0, CU_MEM_ATTACH_GLOBAL));
}

/* Written by the GPU, read by the host, and the other way. */
static void both_reach(CUdeviceptr ptr)
{
	unsigned char *host = (unsigned char *)(uintptr_t)ptr, copied = 0;

	CHECK(!cuMemsetD8_v2(ptr, 5, BYTES) && host[0] == 5 && host[BYTES - 1] == 5);
	host[7] = 9;
	CHECK(!cuMemcpyDtoH_v2(&copied, ptr + 7, 1) && copied == 9);
}

static void gate_leaves_it(CUdeviceptr ptr)
{
	struct agent_reply reply;
	int conn = agent_connect();

	CHECK(agent_gate(conn, &reply) == 0 && agent_do(conn, AGENT_UNMAP, &reply) == 0);
	CHECK(((unsigned char *)(uintptr_t)ptr)[7] == 9);
	((unsigned char *)(uintptr_t)ptr)[8] = 10; /* the program runs on */
	CHECK(agent_do(conn, AGENT_OPEN, &reply) == 0);
	close(conn);
}

static void child_has_none(CUdeviceptr ptr)
{
	pid_t pid = fork();
	int status;

	if (!pid)
		_exit(is_mapped(ptr));
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(is_mapped(ptr));
}

/* While a stream is captured a free may neither wait nor end the capture. */
static void freed_during_a_capture(void)
{
	CUdeviceptr ptr = alloc(PAGE), other;
	CUstream stream;
	CUgraph graph;

	CHECK(!cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CHECK(!cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
	other = alloc(PAGE);
	CHECK(!cuMemFree_v2(ptr) && is_mapped(ptr));
	CHECK(!cuStreamEndCapture(stream, &graph) && !cuGraphDestroy(graph));
	CHECK(!cuMemFree_v2(other) && !is_mapped(ptr) && !is_mapped(other));
	CHECK(!cuStreamDestroy_v2(stream));
}

static void goes_with_its_context(void)
{
	CUdeviceptr ptr;
	CUcontext ctx;

	CHECK(!cuCtxCreate_v2(&ctx, 0, 0));
	ptr = alloc(PAGE);
	CHECK(!cuCtxDestroy_v2(ctx) && !is_mapped(ptr));
}

int main(void)
{
	CUdeviceptr ptr;

	setenv("BRUMATE_MANAGED", "host", 1);
	job_start("256");
	ptr = alloc(BYTES);
	is_told_as_managed(ptr, BYTES);
	advice_is_remembered(ptr);
	mistakes_are_told(ptr);
	both_reach(ptr);
	gate_leaves_it(ptr);
	child_has_none(ptr);
	CHECK(!cuMemFree_v2(ptr) && !is_mapped(ptr));
	freed_during_a_capture();
	goes_with_its_context();
	return 0;
}
