// SPDX-License-Identifier: MIT
/*
 * The devices and contexts of the process, as far as memory and work are concerned. An allocation
 * belongs to the context that was current when it was made, and goes with it.
 */
#include <stdlib.h>

#include "interpose/core/backend.h"
#include "interpose/core/memory.h"

/* To make a piece the process's own takes room for another. A slab is one piece. */
#define PIECE_PART 64

static uint64_t largest_piece(uint64_t total_bytes, uint64_t most_bytes)
{
	uint64_t part = total_bytes / PIECE_PART / SLAB_FIRST_BYTES * SLAB_FIRST_BYTES;

	if (part < SLAB_LAST_BYTES)
		return SLAB_LAST_BYTES;
	return part < most_bytes ? part : most_bytes;
}

static void learn_device(int ordinal, struct device *ret)
{
	*ret = (struct device){ .known = true };
	backend_learn_device(ordinal, ret);
	ret->usable &= ret->granule_bytes && SLAB_FIRST_BYTES % ret->granule_bytes == 0;
	ret->piece_max_bytes = largest_piece(ret->total_bytes, ret->piece_max_bytes);
}

const struct device *device_get(int ordinal)
{
	struct device *slot, learnt;
	bool known;

	if (ordinal < 0 || ordinal >= DEVICES_MAX)
		return NULL;
	slot = &memory.devices[ordinal];
	memory_lock();
	known = slot->known;
	memory_unlock();
	if (known)
		return slot;
	learn_device(ordinal, &learnt);
	memory_lock();
	if (!slot->known)
		*slot = learnt;
	memory_unlock();
	return slot;
}

void devices_refresh(void)
{
	for (int i = 0; i < DEVICES_MAX; i++)
		if (memory.devices[i].known)
			backend_read_uuid(i, memory.devices[i].uuid);
}

struct context *context_find(void *handle)
{
	struct context *context = memory.contexts;

	while (context && context->handle != handle)
		context = context->next;
	return context;
}

static void note_only_context(void)
{
	const struct context *first = memory.contexts;

	atomic_store(&memory.only_context, first && !first->next ? first->handle : NULL);
}

struct context *context_add(void *handle, int device, bool green)
{
	struct context *fresh = calloc(1, sizeof(*fresh)), *context;

	if (!fresh)
		return NULL;
	fresh->handle = handle;
	fresh->device = device;
	fresh->green = green;
	fresh->next_slab_bytes = SLAB_FIRST_BYTES;
	memory_lock();
	context = context_find(handle);
	if (!context) {
		context = fresh;
		context->next = memory.contexts;
		memory.contexts = context;
		note_only_context();
		fresh = NULL;
	}
	memory_unlock();
	free(fresh);
	return context;
}

static void drop_peers(void *handle)
{
	for (struct peer_access **at = &memory.peers; *at;) {
		struct peer_access *peer = *at;

		if (peer->from != handle && peer->to != handle) {
			at = &peer->next;
			continue;
		}
		*at = peer->next;
		free(peer);
	}
}

/* Takes the record, and all blocks, out of the tables. */
static struct context *unlink_context(void *handle)
{
	struct context **at = &memory.contexts, *context;
	struct block *block = NULL;

	while (*at && (*at)->handle != handle)
		at = &(*at)->next;
	context = *at;
	if (!context)
		return NULL;
	*at = context->next;
	note_only_context();
	atomic_fetch_add(&memory.contexts_gone, 1);
	drop_peers(handle);
	slab_forget(context);
	while ((block = tree_next(&memory.blocks, block))) {
		if (block->context != handle)
			continue;

		struct block *gone = block;

		block = tree_floor(&memory.blocks, gone->node.start - 1);
		tree_remove(&memory.blocks, &gone->node);
		free(gone);
	}
	return context;
}

static struct region *region_of(const struct context *context)
{
	struct region *region = NULL;

	while ((region = tree_next(&memory.regions, region)))
		if (region->context == context && !region->busy) {
			region->busy = true;
			return region;
		}
	return NULL;
}

void context_drop(void *handle)
{
	struct context *context;
	struct region *region;

	memory_lock();
	context = unlink_context(handle);
	while (context && (region = region_of(context))) {
		memory_unlock();
		region_free(region);
		memory_lock();
	}
	memory_unlock();
	free(context);
}

static void *context_of_device(int device)
{
	struct context *context;
	void *handle;

	memory_lock();
	context = memory.contexts;
	while (context && context->device != device)
		context = context->next;
	handle = context ? context->handle : NULL;
	memory_unlock();
	return handle;
}

bool context_enter_known(int device)
{
	void *handle = context_of_device(device);

	return handle && !backend_enter(handle);
}

int context_enter(int device, void **ret_retained)
{
	int r;

	*ret_retained = NULL;
	if (context_enter_known(device))
		return 0;
	r = backend_retain(ret_retained, device);
	return r ? r : backend_enter(*ret_retained);
}

void context_leave(int device, void *retained)
{
	backend_leave();
	if (retained)
		backend_release_retained(device);
}
