// SPDX-License-Identifier: MIT
/* Addresses of what was freed, and a little memory, are kept for the next allocation; to the program they
 * are nobody's, and the memory is free. */
#include "interpose/entry/elf-object.h"
#include "interpose/cuda/gpudirect.h"
#include "job.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20, GRANULE = 2 * MIB, MANY = 300, KEPT_MAX = 256 };

#define GIB ((size_t)1 << 30)

static CUdeviceptr allocated(size_t bytes)
{
	CUdeviceptr ptr;

	CHECK(!cuMemAlloc_v2(&ptr, bytes));
	return ptr;
}

static CUdeviceptr freed(size_t bytes)
{
	CUdeviceptr ptr = allocated(bytes);

	CHECK(!cuMemFree_v2(ptr));
	return ptr;
}

/* Whether somebody has these addresses: the simulated driver's are the process's. */
static bool taken(CUdeviceptr ptr, size_t bytes)
{
	void *at = mmap((void *)(uintptr_t)ptr, bytes, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (at == MAP_FAILED)
		return errno == EEXIST;
	CHECK(!munmap(at, bytes));
	return false;
}

static void test_used_again(void)
{
	CUdeviceptr ptr = freed(4 * MIB), other;

	CHECK(taken(ptr, 4 * MIB));
	other = allocated(6 * MIB);
	CHECK(other + 6 * MIB <= ptr || other >= ptr + 4 * MIB);
	agent_cycle();
	CHECK(taken(ptr, 4 * MIB));
	CHECK(allocated(3 * MIB) == ptr); /* as long, in whole granules */
	fill(ptr, 3 * MIB, 1);
	fill(other, 6 * MIB, 2);
	agent_cycle();
	CHECK(holds(ptr, 3 * MIB, 1) && holds(other, 6 * MIB, 2));
	CHECK(!cuMemFree_v2(ptr) && !cuMemFree_v2(other));
}

static void test_many_attributes(CUdeviceptr ptr)
{
	CUpointer_attribute names[] = { CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
					CU_POINTER_ATTRIBUTE_RANGE_SIZE,
					CU_POINTER_ATTRIBUTE_MAPPED };
	CUdeviceptr start = 1;
	size_t bytes = 1;
	unsigned int mapped = 1;
	void *data[] = { &start, &bytes, &mapped };

	CHECK(!cuPointerGetAttributes(3, names, data, ptr));
	CHECK(!start && !bytes && !mapped);
}

/* As of memory that the driver itself freed. */
static void test_told_of(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr = freed(4 * MIB), base;
	uint64_t value;
	size_t bytes;

	CHECK(cuMemGetAddressRange_v2(&base, &bytes, ptr) == CUDA_ERROR_NOT_FOUND);
	for (int i = CU_POINTER_ATTRIBUTE_CONTEXT; i <= CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE; i++)
		CHECK(cuPointerGetAttribute(&value, (CUpointer_attribute)i, ptr + MIB) ==
		      CUDA_ERROR_INVALID_VALUE);
	test_many_attributes(ptr);
	CHECK(cuMemFree_v2(ptr) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemAddressFree(ptr, 4 * MIB) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)ptr) ==
	      CUDA_ERROR_INVALID_VALUE);
	CHECK(cuMemcpyHtoD_v2(ptr, &value, sizeof(value)) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemCreate(&handle, GRANULE, &prop, 0));
	CHECK(cuMemMap(ptr, GRANULE, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(!cuMemRelease(handle));
	CHECK(allocated(4 * MIB) == ptr && !cuMemFree_v2(ptr));
}

/* The program gets the addresses it asks for where nothing of its own is. */
static void test_hints(void)
{
	CUdeviceptr ptr = freed(10 * MIB), far = freed(12 * MIB), va;

	CHECK(!cuMemAddressReserve(&va, GRANULE, 0, ptr + 8 * MIB, 0));
	CHECK(va == ptr + 8 * MIB && taken(far, 12 * MIB));
	CHECK(!cuMemAddressFree(va, GRANULE));
	CHECK(!taken(ptr, 10 * MIB));
	CHECK(!cuMemAddressReserve(&va, 20 * MIB, 0, far - 4 * MIB, 0));
	CHECK(!cuMemAddressFree(va, 20 * MIB));
	CHECK(!taken(far, 12 * MIB));
}

static void test_number(CUcontext ctx)
{
	CUdeviceptr ptr[MANY];
	unsigned int n = 0;

	CHECK(!cuCtxSetCurrent(ctx));
	for (int i = 0; i < MANY; i++)
		ptr[i] = allocated(GRANULE);
	for (int i = 0; i < MANY; i++)
		CHECK(!cuMemFree_v2(ptr[i]));
	for (int i = 0; i < MANY; i++)
		n += taken(ptr[i], GRANULE);
	CHECK(n == KEPT_MAX && !taken(ptr[0], GRANULE) && taken(ptr[MANY - 1], GRANULE));
}

/* 16 GiB of lengths that differ, and none that is longer than 1 GiB. */
static void test_length(void)
{
	CUdeviceptr ptr[18];
	size_t kept = 0;

	for (unsigned int i = 0; i < 18; i++)
		ptr[i] = freed(GIB - i * GRANULE);
	for (unsigned int i = 0; i < 18; i++)
		if (taken(ptr[i], GIB - i * GRANULE))
			kept += GIB - i * GRANULE;
	CHECK(kept <= 16 * GIB && kept > 15 * GIB);
	ptr[0] = freed(GIB + GRANULE);
	CHECK(!taken(ptr[0], GIB + GRANULE));
}

/* What is kept goes with any context. */
static void test_context_end(CUcontext primary)
{
	CUdeviceptr ptr;
	CUcontext ctx;

	CHECK(!cuCtxCreate_v2(&ctx, 0, 0));
	ptr = freed(4 * MIB);
	CHECK(taken(ptr, 4 * MIB) && !cuCtxDestroy_v2(ctx));
	CHECK(!taken(ptr, 4 * MIB));
	CHECK(!cuCtxSetCurrent(primary));
}

static void test_use_after_free(void)
{
	static const char kernels[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
				      ".visible .entry brumate_fill_u64(.param .u64 p) { ret; }\n";
	CUdeviceptr ptr = freed(4 * MIB);
	uint64_t n = 10, base = 0;
	void *params[] = { &ptr, &n, &base };
	CUmodule module;
	CUfunction fn;

	CHECK(!cuModuleLoadData(&module, kernels));
	CHECK(!cuModuleGetFunction(&fn, module, "brumate_fill_u64"));
	CHECK(!cuLaunchKernel(fn, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
	CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

static void test_all(void)
{
	CUcontext ctx = job_start("2048");
	size_t before, after, total;

	CHECK(!cuMemGetInfo_v2(&before, &total));
	test_used_again();
	test_told_of();
	test_hints();
	test_context_end(ctx);
	test_number(ctx);
	test_length();
	CHECK(!cuMemGetInfo_v2(&after, &total) && before == after);
	test_use_after_free();
}

/* The second time the driver has no room, until what is kept is given back. */
static void test_no_room(void)
{
	CUdeviceptr ptr, va;

	setenv("BRUMATE_SIM_FAULT",
	       "cuMemAddressReserve:2:error=2,cuMemAddressReserve:4:error=2,"
	       "cuMemAddressReserve:6:error=2,cuMemAddressReserve:8:error=1",
	       1);
	job_start("512");
	freed(4 * MIB);
	ptr = allocated(6 * MIB); /* the second call, and the third */
	CHECK(!cuMemFree_v2(ptr));
	CHECK(!cuMemAddressReserve(&va, GRANULE, 0, 0, 0)); /* the fourth, and the fifth */
	CHECK(cuMemAddressReserve(&va, GRANULE, 0, 0, 0) == CUDA_ERROR_OUT_OF_MEMORY);
	ptr = freed(4 * MIB + 1);
	/* What the driver refuses for another reason costs nothing that is kept. */
	CHECK(cuMemAddressReserve(&va, GRANULE, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
	CHECK(taken(ptr, 6 * MIB));
}

/* What the driver itself says is free. */
static size_t truly_free(void)
{
	__typeof__(cuMemGetInfo_v2) *info;
	struct elf_object object;
	size_t bytes, total;

	CHECK(elf_find_soname(&object, "libcuda.so.1"));
	info = (__typeof__(info))elf_function(&object, "cuMemGetInfo_v2");
	CHECK(info && !info(&bytes, &total));
	return bytes;
}

static size_t told_free(void)
{
	size_t bytes, total;

	CHECK(!cuMemGetInfo_v2(&bytes, &total));
	return bytes;
}

/* Up to 1/256 of the GPU's, what was freed last; until the job is parked. */
static void test_memory_kept(void)
{
	CUdeviceptr ptr[8];
	size_t before;

	job_start("2048");
	before = truly_free();
	for (int i = 0; i < 8; i++)
		ptr[i] = allocated(GRANULE);
	for (int i = 0; i < 8; i++)
		CHECK(!cuMemFree_v2(ptr[i]));
	CHECK(truly_free() == before - 8 * MIB && told_free() == before);
	for (int i = 8; i-- > 0;)
		CHECK(allocated(GRANULE) == ptr[i]);
	CHECK(truly_free() == before - 16 * MIB && told_free() == before - 16 * MIB);
	for (int i = 0; i < 8; i++)
		fill(ptr[i], GRANULE, (unsigned int)i);
	agent_cycle();
	for (int i = 0; i < 8; i++) {
		CHECK(holds(ptr[i], GRANULE, (unsigned int)i));
		CHECK(!cuMemFree_v2(ptr[i]));
	}
	CHECK(truly_free() == before - 8 * MIB);
	agent_cycle();
	CHECK(truly_free() == before && told_free() == before);
	ptr[0] = freed(4 * MIB);
	CHECK(truly_free() == before - 4 * MIB && taken(ptr[0], 4 * MIB));
	freed(16 * MIB); /* more than all that is kept */
	CHECK(truly_free() == before);
}

/* Two GPUs share addresses, but what is kept of one is no memory of the other. */
static void test_kept_of_two_gpus(void)
{
	CUcontext one = job_start("2048"), other;
	size_t before, other_before;
	CUdeviceptr ptr;

	before = truly_free();
	CHECK(!cuCtxCreate_v2(&other, 0, 1));
	other_before = truly_free();
	ptr = freed(4 * MIB);
	CHECK(truly_free() == other_before - 4 * MIB && told_free() == other_before);
	CHECK(!cuCtxSetCurrent(one));
	CHECK(truly_free() == before && told_free() == before);
	CHECK(allocated(4 * MIB) == ptr);
	CHECK(truly_free() == before - 4 * MIB);
	CHECK(!cuCtxSetCurrent(other));
	CHECK(truly_free() == other_before && told_free() == other_before);
}

/* Whatever a network card may have registered goes at once. */
static void test_rdma_is_not_kept(void)
{
	size_t before;

	setenv("BRUMATE_SIM_RDMA", "1", 1);
	job_start("2048");
	before = truly_free();
	freed(4 * MIB);
	CHECK(truly_free() == (gpudirect_possible_here() ? before : before - 4 * MIB));
}

/* Neither the agent nor an earlier use of it sees freed memory as the program's. */
static void test_kept_is_not_listed(void)
{
	struct agent_reply reply;
	struct agent_piece *pieces;
	CUdeviceptr ptr;
	size_t n;
	int conn;

	job_start("2048");
	ptr = allocated(4 * MIB);
	freed(4 * MIB);
	conn = agent_connect();
	CHECK(!agent_do(conn, AGENT_HELLO, &reply) && reply.managed_bytes == 4 * MIB);
	pieces = agent_list(conn, &n);
	CHECK(n == 1 && pieces->va == ptr);
	free(pieces);
	close(conn);
}

/* Memory that is wanted elsewhere is not kept. */
static void test_kept_is_given_back(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				     .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr ptr;
	size_t room;

	job_start("1024");
	freed(4 * MIB);
	room = told_free();
	CHECK(truly_free() == room - 4 * MIB);
	ptr = allocated(room);
	CHECK(!told_free() && !cuMemFree_v2(ptr));
	freed(4 * MIB);
	CHECK(!cuMemCreate(&handle, room, &prop, 0) && !cuMemRelease(handle));
	CHECK(told_free() == room && truly_free() == room);
}

static void run(void (*test)(void))
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (!child) {
		test();
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && !status);
}

int main(void)
{
	run(test_all);
	run(test_no_room);
	run(test_memory_kept);
	run(test_kept_of_two_gpus);
	run(test_rdma_is_not_kept);
	run(test_kept_is_not_listed);
	run(test_kept_is_given_back);
	return 0;
}
