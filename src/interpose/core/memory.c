// SPDX-License-Identifier: MIT
/*
 * Allocations of the program, made of memory that can be taken away: large blocks have a region of their
 * own, small ones a place in a slab. What cannot be made so is the driver's, and counted.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "interpose/core/backend.h"
#include "interpose/core/memory.h"
#include "interpose/core/room.h"

struct memory memory = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Freed by the program while a stream was being captured. */
static _Atomic(struct block *) deferred;

void memory_forget(void)
{
	memory = (struct memory){ .lock = PTHREAD_MUTEX_INITIALIZER };
	atomic_store(&deferred, NULL);
	capture_forget();
}

void memory_note_shared(const char *how)
{
	const char *nothing = NULL;

	atomic_compare_exchange_strong(&memory.shared_by_driver, &nothing, how);
}

void memory_note_peers(void)
{
	atomic_store(&memory.peers_by_driver, true);
}

void memory_note_withheld(unsigned int what)
{
	atomic_fetch_or(&memory.withheld, what);
}

void memory_count_driver(uint64_t bytes, bool added)
{
	memory_lock();
	if (added)
		memory.driver_bytes += bytes;
	else
		memory.driver_bytes -= bytes < memory.driver_bytes ? bytes : memory.driver_bytes;
	memory_unlock();
}

/* Gives the memory of a block that is in no table any more back. */
static void release_block(struct block *block)
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

static void defer_block(struct block *block)
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

	if (!atomic_load_explicit(&deferred, memory_order_relaxed) || !capture_forbid())
		return;
	for (block = atomic_exchange(&deferred, NULL); block; block = next) {
		next = block->next;
		if (!backend_wait(block->context))
			release_block(block);
		else
			free(block); /* the context is broken: its memory goes with it */
	}
	capture_permit();
}

void blocks_drop_deferred(void *context)
{
	struct block *block = atomic_exchange(&deferred, NULL), *next;

	for (; block; block = next) {
		next = block->next;
		if (block->context == context)
			free(block);
		else
			defer_block(block);
	}
}

static int take_small(struct context *context, size_t bytes, struct block *block)
{
	int r = 0;
	uint64_t va;

	memory_lock();
	while (!slab_take(context, bytes, &va, &block->region)) {
		size_t size = slab_next_bytes(context);
		struct region *slab;

		memory_unlock();
		r = region_new(&slab, context, size, true);
		if (r == -ENOMEM && size > SLAB_FIRST_BYTES)
			r = region_new(&slab, context, SLAB_FIRST_BYTES, true);
		if (r)
			return r;
		memory_lock();
		slab_add(slab);
	}
	memory_unlock();
	block->node = (struct node){ .start = va, .bytes = bytes };
	return 0;
}

static int take_large(struct context *context, size_t bytes, struct block *block)
{
	int r = region_new(&block->region, context, bytes, false);

	if (!r)
		block->node = (struct node){ .start = block->region->node.start, .bytes = bytes };
	return r;
}

static int take_room(struct context *context, size_t bytes, struct block *block)
{
	return bytes < SLAB_BLOCK_BYTES ? take_small(context, bytes, block)
					: take_large(context, bytes, block);
}

/* Gives empty slabs of all contexts back. */
static bool free_empty_slabs(void)
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

static int make_block(struct context *context, uint64_t *ret, size_t bytes)
{
	struct block *block;
	int r;

	if (bytes > memory.devices[context->device].total_bytes)
		return -ENOMEM;
	block = calloc(1, sizeof(*block));
	if (!block)
		return -ENOMEM;
	r = take_room(context, bytes, block);
	if (r == -ENOMEM && free_empty_slabs())
		r = take_room(context, bytes, block);
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
	return 0;
}

int block_alloc(struct context *context, uint64_t *ret, size_t bytes)
{
	bool captured = capture_active(); /* to relax costs two calls of the driver */
	int mode = captured ? capture_relax() : 0, r = -EOPNOTSUPP;

	free_deferred();
	if (memory.devices[context->device].usable)
		r = make_block(context, ret, bytes);
	if (captured)
		capture_restore(mode);
	return r;
}

bool block_starts(uint64_t va, void **ret_context, bool *ret_ours)
{
	struct block *block;

	memory_lock();
	block = tree_get(&memory.blocks, va);
	*ret_ours = block || tree_find(&memory.regions, va) || tree_find(&memory.opened, va);
	if (block)
		*ret_context = block->context;
	memory_unlock();
	return block;
}

/* After waiting: another thread may have freed it meanwhile. */
static struct block *unlink_block(uint64_t va)
{
	struct block *block;

	memory_lock();
	block = tree_take(&memory.blocks, va);
	memory_unlock();
	return block;
}

/* While a stream is being captured nothing may wait: the block is freed later. */
static int free_block(uint64_t va, void *context)
{
	bool later = !capture_forbid();
	int r = later ? 0 : backend_wait(context);
	struct block *block;

	if (!later)
		capture_permit();
	if (r)
		return r;
	block = unlink_block(va);
	if (!block)
		return -EINVAL;
	if (later)
		defer_block(block);
	else
		release_block(block);
	return 0;
}

int block_free(uint64_t va, void *context)
{
	bool captured = capture_active();
	int mode = captured ? capture_relax() : 0;
	int r = free_block(va, context);

	free_deferred();
	if (captured)
		capture_restore(mode);
	return r;
}

uint64_t memory_free_bytes(int device)
{
	uint64_t bytes, held = room_held_bytes(memory.devices[device].uuid);

	memory_lock();
	bytes = held + memory.devices[device].kept_bytes + memory.devices[device].held_bytes;
	for (const struct context *context = memory.contexts; context; context = context->next)
		if (context->device == device)
			bytes += context->free_bytes;
	memory_unlock();
	return bytes;
}
