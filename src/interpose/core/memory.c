// SPDX-License-Identifier: MIT
/*
 * cuMemAlloc and cuMemFree as the program knows them, made of memory that can be taken away: large
 * blocks have a region of their own, small ones a place in a slab. What cannot be made so is left to
 * the driver and counted.
 */
#include <stdatomic.h>
#include <stdlib.h>

#include "interpose/cuda/calls.h"
#include "interpose/core/memory.h"

struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Freed by the program while a stream was being captured. */
static _Atomic(struct block *) deferred;

void memory_forget(void)
{
	memory = (struct memory){ .lock = PTHREAD_MUTEX_INITIALIZER };
	atomic_store(&deferred, NULL);
	capture_forget();
	agent_forget();
}

void memory_count_driver(CUdeviceptr ptr, bool added)
{
	size_t bytes = 0;

	if (driver.cuMemGetAddressRange_v2(NULL, &bytes, ptr))
		return;
	memory_lock();
	if (added)
		memory.driver_bytes += bytes;
	else
		memory.driver_bytes -= bytes < memory.driver_bytes ? bytes : memory.driver_bytes;
	memory_unlock();
}

/* Gives the memory of a block that is in no table any more back. */
static void release(struct block *block)
{
	struct region *region = block->region;
	bool empty = true;

	if (region->slab) {
		memory_lock();
		empty = slab_give(region, block->node.start, block->node.bytes);
		memory_unlock();
	}
	if (empty)
		region_free(region);
	free(block);
}

static void defer(struct block *block)
{
	struct block *head = atomic_load(&deferred);

	do
		block->next = head;
	while (!atomic_compare_exchange_weak(&deferred, &head, block));
}

/* Frees what had to wait, if it need not any more. */
static void free_deferred(void)
{
	struct block *block, *next;

	if (!atomic_load_explicit(&deferred, memory_order_relaxed) || capture_active())
		return;
	for (block = atomic_exchange(&deferred, NULL); block; block = next) {
		next = block->next;
		if (context_synchronize(block->context) == CUDA_SUCCESS)
			release(block);
		else
			free(block); /* the context is broken: its memory goes with it */
	}
}

void memory_drop_deferred(CUcontext context)
{
	struct block *block = atomic_exchange(&deferred, NULL), *next;

	for (; block; block = next) {
		next = block->next;
		if (block->context == context)
			free(block);
		else
			defer(block);
	}
}

/* Costs two calls of the driver, which only captures are worth. */
static CUstreamCaptureMode relax(void)
{
	return capture_active() ? capture_relax() : CU_STREAM_CAPTURE_MODE_RELAXED;
}

static CUresult take_small(struct context *context, size_t bytes, struct block *block)
{
	CUresult r = CUDA_SUCCESS;
	CUdeviceptr va;

	memory_lock();
	while (!slab_take(context, bytes, &va, &block->region)) {
		size_t size = slab_next_bytes(context);
		struct region *slab;

		memory_unlock();
		r = region_new(&slab, context, size, true);
		if (r == CUDA_ERROR_OUT_OF_MEMORY && size > SLAB_FIRST_BYTES)
			r = region_new(&slab, context, SLAB_FIRST_BYTES, true);
		if (r)
			return r;
		memory_lock();
		slab_add(slab);
	}
	memory_unlock();
	block->node = (struct node){ .start = va, .bytes = bytes };
	return CUDA_SUCCESS;
}

static CUresult take_large(struct context *context, size_t bytes, struct block *block)
{
	CUresult r = region_new(&block->region, context, bytes, false);

	if (!r)
		block->node = (struct node){ .start = block->region->node.start, .bytes = bytes };
	return r;
}

static CUresult take(struct context *context, size_t bytes, struct block *block)
{
	return bytes < SLAB_BLOCK_BYTES ? take_small(context, bytes, block)
					: take_large(context, bytes, block);
}

/* Gives empty slabs of all contexts back. */
static bool trim(void)
{
	bool any = false;

	for (;;) {
		struct region *spare = NULL;

		memory_lock();
		for (struct context *c = memory.contexts; c && !spare; c = c->next)
			spare = slab_spare(c);
		memory_unlock();
		if (!spare)
			return any;
		region_free(spare);
		any = true;
	}
}

static CUresult allocate(struct context *context, CUdeviceptr *ret, size_t bytes)
{
	struct block *block;
	CUresult r;

	if (bytes > memory.devices[context->device].total_bytes)
		return CUDA_ERROR_OUT_OF_MEMORY;
	block = calloc(1, sizeof(*block));
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = take(context, bytes, block);
	if (r == CUDA_ERROR_OUT_OF_MEMORY && trim())
		r = take(context, bytes, block);
	if (r) {
		free(block);
		return r;
	}
	block->context = context->handle;
	block->device = context->device;
	*ret = block->node.start;
	memory_lock();
	block->id = ++memory.last_id;
	tree_add(&memory.blocks, &block->node);
	memory_unlock();
	return CUDA_SUCCESS;
}

CUresult memory_alloc(CUdeviceptr *ret, size_t bytes)
{
	CUstreamCaptureMode mode;
	struct context *context;
	CUresult r;

	if (!memory_managed())
		return driver.cuMemAlloc_v2(ret, bytes);
	context = context_current(&r);
	if (!context)
		return r;
	if (!ret || !bytes)
		return CUDA_ERROR_INVALID_VALUE;
	mode = relax();
	free_deferred();
	r = CUDA_ERROR_NOT_SUPPORTED;
	if (memory.devices[context->device].usable)
		r = allocate(context, ret, bytes);
	capture_restore(mode);
	if (!r || r == CUDA_ERROR_OUT_OF_MEMORY)
		return r;
	r = driver.cuMemAlloc_v2(ret, bytes);
	if (!r)
		memory_count_driver(*ret, true);
	return r;
}

/* Memory that moves by itself stays the driver's. */
CUresult memory_alloc_managed(CUdeviceptr *ret, size_t bytes, unsigned int flags)
{
	CUresult r = driver.cuMemAllocManaged(ret, bytes, flags);

	if (!r)
		memory_count_driver(*ret, true);
	return r;
}

/* The attribute that says how rows are aligned for textures is smaller on every GPU there is. */
enum { PITCH_BYTES = 512 };

CUresult memory_alloc_pitch(CUdeviceptr *ret, size_t *ret_pitch, size_t width, size_t height,
			    unsigned int element)
{
	size_t pitch = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES, bytes;
	struct context *context;
	CUresult r;

	if (!memory_managed())
		return driver.cuMemAllocPitch_v2(ret, ret_pitch, width, height, element);
	context = context_current(&r);
	if (!context)
		return r;
	if (!ret || !ret_pitch || !width || !height ||
	    (element != 4 && element != 8 && element != 16) || pitch < width ||
	    __builtin_mul_overflow(pitch, height, &bytes))
		return driver.cuMemAllocPitch_v2(ret, ret_pitch, width, height, element);
	r = memory_alloc(ret, bytes);
	if (!r)
		*ret_pitch = pitch;
	return r;
}

/* Takes the block that starts at @ptr out of the table. NULL: none does; @ret_ours: one contains it. */
static struct block *take_block(CUdeviceptr ptr, CUcontext *ret_context, bool *ret_ours)
{
	struct block *block;

	memory_lock();
	block = tree_get(&memory.blocks, ptr);
	*ret_ours = block || tree_find(&memory.regions, ptr) || tree_find(&memory.opened, ptr);
	if (block)
		*ret_context = block->context;
	memory_unlock();
	return block;
}

/* Again after waiting: somebody else may have freed it meanwhile. */
static struct block *unlink_block(CUdeviceptr ptr)
{
	struct block *block;

	memory_lock();
	block = tree_take(&memory.blocks, ptr);
	memory_unlock();
	return block;
}

static CUresult free_ours(CUdeviceptr ptr, CUcontext owner)
{
	CUstreamCaptureMode mode = relax();
	bool later = capture_active();
	CUresult r = later ? CUDA_SUCCESS : context_synchronize(owner);
	struct block *block = NULL;

	if (!r) {
		block = unlink_block(ptr);
		r = block ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	}
	if (block && later)
		defer(block);
	else if (block)
		release(block);
	free_deferred();
	capture_restore(mode);
	return r;
}

CUresult memory_free(CUdeviceptr ptr)
{
	struct block *block;
	CUcontext owner;
	CUresult r;
	bool ours;

	if (!memory_managed())
		return driver.cuMemFree_v2(ptr);
	block = take_block(ptr, &owner, &ours);
	if (!block && !ours) {
		if (ptr && memory.driver_bytes)
			memory_count_driver(ptr, false);
		return driver.cuMemFree_v2(ptr);
	}
	if (!context_current(&r))
		return r;
	return block ? free_ours(ptr, owner) : CUDA_ERROR_INVALID_VALUE;
}

CUresult memory_info(size_t *free_bytes, size_t *total_bytes)
{
	CUresult r = driver.cuMemGetInfo_v2(free_bytes, total_bytes);
	struct context *context;
	int device;
	CUresult ignored;

	if (r || !memory_managed() || !(context = context_current(&ignored)))
		return r;
	memory_lock();
	device = context->device;
	*free_bytes += memory.devices[device].kept_bytes;
	for (context = memory.contexts; context; context = context->next)
		if (context->device == device)
			*free_bytes += context->free_bytes;
	memory_unlock();
	return CUDA_SUCCESS;
}
