// SPDX-License-Identifier: MIT
/* The limit of stacks, and the device memory that it takes. */
#include <stdlib.h>

#include "sim.h"

enum { USUAL = 1024 };

static size_t limit(void)
{
	size_t value = 0;

	CHECK(cu.cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
	return value;
}

static void test_memory(void)
{
	size_t before = free_bytes();

	CHECK(limit() == USUAL);
	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16) == CUDA_SUCCESS);
	CHECK(limit() == 16);
	CHECK(free_bytes() == before + 16 * MIB - 16 * MIB / 64);
	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2 * USUAL) == CUDA_SUCCESS);
	CHECK(free_bytes() == before - 16 * MIB);
	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, USUAL) == CUDA_SUCCESS);
	CHECK(free_bytes() == before);
}

static void test_refused(void)
{
	size_t before = free_bytes(), value;

	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 64 * USUAL) == CUDA_ERROR_OUT_OF_MEMORY);
	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1 << 20) == CUDA_ERROR_INVALID_VALUE);
	CHECK(cu.cuCtxSetLimit((CUlimit)1, 1) == CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(cu.cuCtxGetLimit(&value, (CUlimit)1) == CUDA_ERROR_UNSUPPORTED_LIMIT);
	CHECK(cu.cuCtxGetLimit(NULL, CU_LIMIT_STACK_SIZE) == CUDA_ERROR_INVALID_VALUE);
	CHECK(limit() == USUAL && free_bytes() == before);
	CHECK(cu.cuCtxSetCurrent(NULL) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, USUAL) == CUDA_ERROR_INVALID_CONTEXT);
}

/* A context that comes to life again has the usual one. */
static void test_anew(void)
{
	CUcontext ctx;

	CHECK(cu.cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4 * USUAL) == CUDA_SUCCESS);
	for (int i = 0; i < 2; i++)
		CHECK(cu.cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
	CHECK(cu.cuDevicePrimaryCtxRetain(&ctx, 0) == CUDA_SUCCESS);
	CHECK(cu.cuCtxSetCurrent(ctx) == CUDA_SUCCESS);
	CHECK(limit() == USUAL);
}

static void keep_limit(int socket)
{
	start_driver(0);
	CHECK(cu.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 2 * USUAL) == CUDA_SUCCESS);
	say(socket, free_bytes());
	hear(socket);
	say(socket, limit() == 2 * USUAL ? free_bytes() : 0);
}

/* It goes with a checkpoint and comes back with the restore. */
static void test_checkpoint(void)
{
	size_t idle = free_bytes(), before;
	struct child child;

	child_start(&child, "keep_limit");
	before = hear(child.socket);
	CHECK(before + 32 * MIB <= idle);
	CHECK(lock(child.pid, 1000) == CUDA_SUCCESS);
	CHECK(checkpoint(child.pid) == CUDA_SUCCESS);
	CHECK(free_bytes() == idle);
	CHECK(restore(child.pid) == CUDA_SUCCESS);
	CHECK(unlock(child.pid) == CUDA_SUCCESS);
	say(child.socket, 1);
	CHECK(hear(child.socket) == before);
	child_end(&child);
}

int main(int argc, char **argv)
{
	static const struct child_body bodies[] = { { "keep_limit", keep_limit }, { NULL } };

	child_main(argc, argv, bodies);
	make_machine("256");
	setenv("BRUMATE_SIM_STACKS_MIB", "16", 1);
	start_driver(0);
	test_memory();
	test_checkpoint();
	test_refused();
	test_anew();
	return 0;
}
