// SPDX-License-Identifier: MIT
/* Two GPUs: peer access to our memory, before and after it was away, and copies without it. */
#include "job.h"

#include <string.h>

enum { MIB = 1 << 20, N = 1000 };

static const char kernels[] = ".version 8.0\n.target sm_90\n.address_size 64\n"
			      ".visible .entry brumate_fill_u64(.param .u64 p) { ret; }\n";

/* Whether a kernel on the current context's GPU may write to @ptr. */
static bool reaches(CUfunction fn, CUdeviceptr ptr)
{
	uint64_t n = N, value = 7;
	void *params[] = { &ptr, &n, &value };
	CUresult r = cuLaunchKernel(fn, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL);

	return !r && !cuCtxSynchronize();
}

static CUfunction load(void)
{
	CUmodule module;
	CUfunction fn;

	CHECK(!cuModuleLoadData(&module, kernels));
	CHECK(!cuModuleGetFunction(&fn, module, "brumate_fill_u64"));
	return fn;
}

int main(void)
{
	CUdeviceptr before, after, here, none, freed;
	CUcontext a, b, c;
	CUfunction fn;

	setenv("BRUMATE_SIM_GPUS", "2", 1);
	a = job_start("512");
	CHECK(!cuCtxCreate_v2(&b, 0, 1));
	CHECK(!cuMemAlloc_v2(&before, 3 * MIB));
	CHECK(!cuCtxSetCurrent(a));
	CHECK(!cuCtxEnablePeerAccess(b, 0));
	CHECK(cuCtxEnablePeerAccess(b, 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
	CHECK(!cuCtxSetCurrent(b));
	CHECK(!cuMemAlloc_v2(&after, 1000 * 8));
	CHECK(!cuCtxSetCurrent(a));
	CHECK(!cuMemAlloc_v2(&here, 3 * MIB));
	fn = load();
	CHECK(reaches(fn, before) && reaches(fn, after));
	fill(before, 3 * MIB, 1);
	fill(after, 8000, 2);
	fill(here, 3 * MIB, 3);
	agent_cycle();
	CHECK(holds(before, 3 * MIB, 1) && holds(after, 8000, 2) && holds(here, 3 * MIB, 3));
	CHECK(reaches(fn, before) && reaches(fn, after));
	fill(before, 3 * MIB, 1);
	CHECK(!cuMemcpyDtoD_v2(here, before, 3 * MIB) && holds(here, 3 * MIB, 1));
	fill(here, 3 * MIB, 4);
	CHECK(!cuMemcpyPeer(before, b, here, a, 3 * MIB) && holds(before, 3 * MIB, 4));
	CHECK(!cuMemcpyPeerAsync(here, a, before, b, 3 * MIB, NULL) && !cuCtxSynchronize());
	fill(before, 3 * MIB, 1);

	/* Addresses that are used again are reached by who may reach what is there now, and by nobody else. */
	CHECK(!cuCtxSetCurrent(b) && !cuMemAlloc_v2(&freed, 5 * MIB) && !cuMemFree_v2(freed));
	CHECK(!cuMemAlloc_v2(&after, 5 * MIB) && after == freed);
	CHECK(!cuCtxSetCurrent(a) && reaches(fn, after) && !cuMemFree_v2(after));
	CHECK(!cuMemAlloc_v2(&none, 5 * MIB) && none == freed && reaches(fn, none));

	/* The other way round was never enabled, and what was is taken back. */
	CHECK(!cuCtxDisablePeerAccess(b));
	CHECK(cuCtxDisablePeerAccess(b) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
	fill(here, 3 * MIB, 3);
	CHECK(!cuMemcpyDtoDAsync_v2(here, before, 3 * MIB, NULL) && !cuCtxSynchronize());
	CHECK(holds(here, 3 * MIB, 1));
	CHECK(!cuCtxSetCurrent(b));
	CHECK(!cuCtxCreate_v2(&c, 0, 1)); /* a kernel that reaches too far ends its context */
	fn = load();
	CHECK(!reaches(fn, none));
	CHECK(!cuCtxDestroy_v2(c));
	CHECK(!cuCtxSetCurrent(a) && !cuCtxCreate_v2(&c, 0, 0));
	fn = load();
	CHECK(!reaches(fn, before));
	CHECK(!cuCtxDestroy_v2(c));
	return 0;
}
