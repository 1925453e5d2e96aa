// SPDX-License-Identifier: MIT
/*
 * The stacks of kernels: each context keeps device memory for those of all threads that its GPU can
 * run at once, as much as its limit says. While the job's memory is taken away no kernel runs, and the
 * limit is lowered, so that the driver has less to save; before the gate opens it is what the program
 * had. Only the agent's thread comes here, with the gate closed.
 */
#include "interpose/core/memory.h"

enum { LOWERED_BYTES = 16 };

/* Programs that set a limit themselves are asked anew each time. */
static CUresult lower(struct context *context)
{
	size_t limit;
	CUresult r = driver.cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE);

	if (r || (context->stack_bytes && limit == context->lowered_to) || limit <= LOWERED_BYTES)
		return r;
	r = driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, LOWERED_BYTES);
	if (r)
		return r;
	context->stack_bytes = limit;
	/* The driver may have rounded it. */
	if (driver.cuCtxGetLimit(&context->lowered_to, CU_LIMIT_STACK_SIZE))
		context->lowered_to = LOWERED_BYTES;
	return CUDA_SUCCESS;
}

/* Another limit than ours is one the program set after a gate had opened without this. */
static CUresult set_back(struct context *context)
{
	size_t limit;
	CUresult r = driver.cuCtxGetLimit(&limit, CU_LIMIT_STACK_SIZE);

	if (!r && limit == context->lowered_to)
		r = driver.cuCtxSetLimit(CU_LIMIT_STACK_SIZE, context->stack_bytes);
	if (!r)
		context->stack_bytes = 0;
	return r;
}

static CUresult in_context(struct context *context, CUresult (*call)(struct context *context))
{
	CUresult r = driver.cuCtxPushCurrent_v2(context->handle);

	if (r)
		return r;
	r = call(context);
	driver.cuCtxPopCurrent_v2(NULL);
	return r;
}

void stacks_lower(void)
{
	if (!driver.cuCtxGetLimit || !driver.cuCtxSetLimit)
		return;
	/* One that is not lowered is only more to save. */
	for (struct context *c = memory.contexts; c; c = c->next)
		if (!c->green)
			in_context(c, lower);
}

CUresult stacks_set_back(void)
{
	CUresult first = CUDA_SUCCESS;

	for (struct context *c = memory.contexts; c; c = c->next) {
		CUresult r = c->stack_bytes ? in_context(c, set_back) : CUDA_SUCCESS;

		first = first ? first : r;
	}
	return first;
}
